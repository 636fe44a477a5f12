"""Compare the facts in a preset with what Slurm's clients report.

A fact that the preset leaves out is unknown, and not compared.
"""

import grp
import json
import math
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import yaml

from train_anywhere.distributed import programs
from train_anywhere.errors import SchedulerError
from train_anywhere.slurm.script import clean_environment, units
from train_anywhere.slurm.script.clean_environment import user_name

TIMEOUT_S = 30.0
NODES, PARTITIONS, CONFIG = (f"scontrol show {what}" for what in ("nodes", "partitions", "config"))
QOS, ACCOUNTS = "sacctmgr show qos", "sacctmgr show associations"

Keys = tuple[str | int, ...]


class Kind(NamedTuple):
    """Equal nodes of one partition, with the CPUs, their cores, and the MiB of a job."""

    partition: str
    gpu_type: str | None
    gpus: int
    cpus: tuple[int, int]
    mem: int


class SlurmFacts:
    """The answers of Slurm. A client that fails leaves its part empty, and a message.

    Attributes:
        kinds: number of nodes of each kind with GPUs, in any state, because a node that is down still belongs to the site.
        up: partitions with GPUs that accept jobs.
        usable: those of `up` that are open to the user's groups and accounts, as far as these are known.
        accounts: the user's accounts, each with its default quality of service.
    """

    def __init__(self) -> None:
        self.failures: dict[str, str] = {}
        self.kinds: Counter[Kind] = Counter()
        self.features: set[str] = set()
        found = [_settings(line) for line in self._query(PARTITIONS, "--all", "--oneliner")]
        self.partitions = {of["PartitionName"]: of for of in found if "PartitionName" in of}
        for line in self._query(NODES, "--all", "--oneliner"):
            self._add_node(_settings(line))
        state = {k.partition: self.partitions.get(k.partition, {}).get("State", "UP") for k in self.kinds}
        self.up = {name for name, of in state.items() if of == "UP"}
        self.config = dict(re.findall(r"^(\w+) *= (.*)$", "\n".join(self._query(CONFIG)), re.MULTILINE))
        limits = self._query(QOS, "format=name,maxwall,maxtres,maxtrespu", "-nP")
        self.qos = {name: rest for name, *rest in (line.split("|") for line in limits if "|" in line)}
        # one database may have several clusters
        of_user = f"user={user_name()}", f"cluster={self.config.get('ClusterName', '')}"
        lines = self._query(ACCOUNTS, "format=account,defaultqos", "-nP", *of_user)
        self.accounts = dict(line.split("|")[:2] for line in lines if "|" in line)
        self.usable = self._find_usable(*of_user[1:])
        if not self.usable and not self.failures.keys() & {"scontrol", NODES, PARTITIONS}:
            self.failures["GPUs"] = "no partition with GPUs is UP and open to your groups and accounts."

    def _find_usable(self, cluster: str) -> set[str]:
        found = {name: self.partitions.get(name, {}) for name in self.up}
        accounts, groups = {*self.accounts}, set[str]()
        for number in {os.getgid(), *os.getgroups()}:
            with suppress(KeyError):
                groups.add(grp.getgrgid(number).gr_name)
        if accounts and not all(_allows(of, "AllowAccounts", accounts) for of in found.values()):
            # an allowed account also allows those below it, since Slurm 23.02
            pairs = self._query(ACCOUNTS, "format=account,parentname", "-nP", cluster)
            parents = dict(pair.split("|")[:2] for pair in pairs if re.search(r"\|.", pair))
            while more := {parents[name] for name in accounts if name in parents} - accounts:
                accounts |= more
        return {
            name
            for name, of in found.items()
            if of.get("RootOnly") != "YES"
            and _allows(of, "AllowGroups", groups)
            and (not accounts or _allows(of, "AllowAccounts", accounts))
        }

    def _query(self, command: str, *options: str) -> list[str]:
        """Return the lines that a client prints. One that is missing or hung is not started again."""
        name, *words = command.split()
        if name in self.failures:
            return []
        try:
            answer = programs.run([name, *words, *options], TIMEOUT_S)
        except SchedulerError as error:
            self.failures[name] = str(error)
            return []
        if answer.code:
            self.failures[command] = f"{command} failed with {programs.describe_exit(answer)}."
        return [line.strip() for line in answer.out.splitlines() if line.strip() and not answer.code]

    def _add_node(self, node: dict[str, str]) -> None:
        self.features |= {*node.get("AvailableFeatures", "").split(",")}
        number = Counter({key: int(value) for key, value in node.items() if value.isdecimal()})
        threads = number["ThreadsPerCore"] or 1
        # CPUEfctv: since Slurm 22.05
        cpus = number["CPUEfctv"] or number["CPUTot"] - number["CoreSpecCount"] * threads
        mem = number["RealMemory"] - number["MemSpecLimit"]
        for partition in node.get("Partitions", "").split(",") if cpus > 0 and mem > 0 else ():
            of = self.partitions.get(partition, {})
            cpus_here, mem_here = (
                min(have, int(of[key])) if of.get(key, "").isdecimal() else have
                for key, have in (("MaxCPUsPerNode", cpus), ("MaxMemPerNode", mem))
            )
            for gpu_type, gpus in parse_gpus(node.get("Gres", "")):
                self.kinds[Kind(partition, gpu_type, gpus, (cpus_here, cpus_here // threads), mem_here)] += 1


def parse_gpus(gres: str) -> Iterator[tuple[str | None, int]]:
    """Yield type and number of GPUs in a node's resources, such as gpu:a100:4(S:0-1)."""
    for gpu_type, count in re.findall(r"\bgpu:(?:([^:,(]+):)?([0-9]{1,6})(?=[(,]|$)", gres):
        if int(count):
            yield gpu_type or None, int(count)


def _allows(partition: dict[str, str], setting: str, names: Collection[str]) -> bool:
    """Return whether a list such as AllowGroups has one of the names, or is not set."""
    allowed = partition.get(setting, "ALL")
    return allowed == "ALL" or not {*allowed.split(",")}.isdisjoint(names)


def _settings(line: str) -> dict[str, str]:
    """Return the settings in a line of scontrol. The first counts, as comments come last."""
    return dict(reversed(re.findall(r"(?<!\S)(\w+)=(\S*)", line)))


def format_scalar(value: Any) -> str:
    """Return a value in YAML. Without quotes `on` and `1e3` would be other values."""
    plain = re.fullmatch(r"[A-Za-z0-9][\w.-]*", f"{value}") and yaml.safe_load(f"{value}") == value
    return f"{value}" if plain and isinstance(value, str) else json.dumps(value)


class Compared(NamedTuple):
    """One fact: its keys, both values, and the command that reports Slurm's."""

    keys: Keys
    preset: Any
    agrees: bool
    slurm: Any
    command: str

    def __str__(self) -> str:
        key = re.sub(r"\.(\d+)", r"[\1]", ".".join(map(str, self.keys)))
        return f"cluster.{key}: {self.preset} in the preset, {self.slurm} in Slurm ({self.command})"


def fact_names(cluster: Mapping[str, Any]) -> set[str]:
    """Return the keys of all facts in the section `cluster` of a preset."""
    site = cluster["site"]
    keys = {*site, *(key for n in site.get("nodes") or [] for key in n)} - {
        "source",
        "checked",
        "notes",
        "nodes",
    }
    return keys | {"partition", "gpu_type", "qos", "constraint"} & {*cluster}


def compare(cluster: Mapping[str, Any], slurm: SlurmFacts) -> Iterator[Compared]:
    """Yield the facts in the section `cluster` of a preset that Slurm reports too."""
    site, named, nodes = cluster["site"], cluster.get("partition"), cluster["site"].get("nodes") or []
    picks = named or site.get("takes_partition", True)  # otherwise the site picks the partition
    default = {n for n, of in slurm.partitions.items() if picks and of.get("Default") == "YES"}
    default = {*named.split(",")} if named else default
    listed = {n["partition"] for n in nodes if n.get("partition")}
    pool = slurm.usable | slurm.up & (listed | default)  # the preset may have partitions of other users
    kinds = [k for k in slurm.kinds if k.partition in pool]
    kinds.sort(key=lambda k: (k.partition in default, k.partition in listed, k.gpus * slurm.kinds[k]))
    usual = [k for k in kinds[::-1] if k.partition in default] or kinds[::-1]
    if kinds and picks and slurm.partitions:
        wrong = [f"{n}: {_state(n, slurm)}" for n in sorted(default - slurm.up)] or ["no default partition"]
        agrees = bool(default) and default <= slurm.up
        yield Compared(("partition",), named, agrees, ", ".join(wrong), PARTITIONS)
    if kinds:
        yield from _compare_nodes(nodes, kinds, usual, slurm)
        types = dict.fromkeys(k.gpu_type for k in usual)
        says = ", ".join(t or "GPUs without a type" for t in types)
        if named := cluster.get("gpu_type"):
            yield Compared(("gpu_type",), named, named in types, says, NODES)
        if site.get("needs_gpu_type"):
            yield Compared(("site", "needs_gpu_type"), True, len(types) > 1, f"only {says}", NODES)
    for i, n in enumerate(nodes):
        of = {n["partition"]} if n.get("partition") else default
        yield from _compare_time(("site", "nodes", i, "max_time"), n, of, slurm)
    yield from _compare_time(("site", "max_time"), site, listed or slurm.usable, slurm)
    yield from _compare_accounting(cluster, default, slurm)
    if (constraint := cluster.get("constraint")) and slurm.features:
        parts = constraint if isinstance(constraint, list) else [constraint]
        names = re.split(r"(?:[\]\[()&|,\s]|\*\d+)+", "&".join(map(str, parts)))
        missing = {*names} - slurm.features - {""}
        yield Compared(("constraint",), constraint, not missing, f"no {', '.join(missing)}", NODES)


def _state(partition: str, slurm: SlurmFacts) -> str:
    """Return why jobs with GPUs can't use a partition."""
    state = slurm.partitions.get(partition, {}).get("State", "no such partition")
    return "no GPUs" if state == "UP" else state


def _compare_nodes(
    nodes: list[dict[str, Any]], kinds: list[Kind], usual: list[Kind], slurm: SlurmFacts
) -> Iterator[Compared]:
    """Compare each node with the closest kind of its partition, else with an unlisted kind."""
    pools = [(n, kinds if n.get("partition") else usual) for n in nodes]
    naming = {"partition", "gpu_type"}
    matches = [[k for k in pool if not naming & {*_differing(n, k)}] for n, pool in pools]
    unlisted = [k for k in kinds if not any(k in match for match in matches)]
    for i, (n, match) in enumerate(zip(nodes, matches, strict=True)):
        new = [k for k in unlisted if k.gpus == n["gpus"] and len(_differing(n, k)) < 3]
        # one kind stays, even if Slurm has none of them
        if not (near := match or new or usual[: i == 0 and not any(matches)]):
            names = " ".join(f"{n[key]}" for key in ("partition", "gpu_type") if n.get(key))
            why = _state(n["partition"], slurm) if n.get("partition") else "no such nodes"
            yield Compared(("site", "nodes", i), names, False, why, NODES)
            continue
        kind = min(near, key=lambda k: (k.gpus != n["gpus"], len(_differing(n, k))))
        unlisted = [k for k in unlisted if k != kind]
        wrong = _differing(n, kind)
        for key in n.keys() & {*Kind._fields}:
            yield Compared(("site", "nodes", i, key), n[key], key not in wrong, wrong.get(key), NODES)


def _differing(node: Mapping[str, Any], kind: Kind) -> dict[str, Any]:
    """Return the kind's values that differ from those that the preset lists."""
    mem = units.megabytes(str(node["mem"])) if node.get("mem") else kind.mem
    values = {**kind._asdict(), "cpus": kind.cpus[0], "mem": units.short_size(kind.mem)}
    agrees = {key for key, value in values.items() if node.get(key) in (None, value)}
    agrees |= {"cpus"} if node.get("cpus") in kind.cpus else set()
    agrees |= {"mem"} if 0.98 * kind.mem <= mem <= kind.mem else set()  # pages of sites round it down
    return {key: value for key, value in values.items() if key not in agrees}


def _compare_time(
    keys: Keys, section: Mapping[str, Any], partitions: Collection[str], slurm: SlurmFacts
) -> Iterator[Compared]:
    """Compare a limit with those of partitions. A quality of service may have another one."""
    limits = {_seconds(slurm.partitions[n].get("MaxTime", "")) for n in partitions if n in slurm.partitions}
    if (preset := section.get("max_time")) is not None and limits:
        agrees = units.seconds(preset) in limits | {_seconds(wall) for wall, *_ in slurm.qos.values()}
        value = "UNLIMITED" if max(limits) == math.inf else units.clock(int(max(limits)))
        yield Compared(keys, preset, agrees, value, PARTITIONS)


def _seconds(limit: str) -> float:
    """Return the seconds of a limit. Infinity for UNLIMITED and an empty value."""
    with suppress(ValueError):
        return units.seconds(limit)
    return math.inf


def _compare_accounting(
    cluster: Mapping[str, Any], default: set[str], slurm: SlurmFacts
) -> Iterator[Compared]:
    """Compare the quality of service, its limit of GPUs, and accounts."""
    site, qos = cluster["site"], cluster.get("qos")
    if qos and slurm.qos:
        yield Compared(("qos",), qos, qos in slurm.qos, "no such QOS", QOS)
    usual = qos or next(filter(None, slurm.accounts.values()), "normal")
    names = [usual, *(slurm.partitions.get(n, {}).get("QoS", "") for n in default)]
    tres = "|".join(text for n in names for text in slurm.qos.get(n, ()))
    limits = [n for n in map(int, re.findall(r"\bgres/gpu=(\d+)", tres)) if n]  # 0: for jobs without GPUs
    enforced = re.search("limits|safe", slurm.config.get("AccountingStorageEnforce", ""))
    if (most := site.get("max_gpus")) and enforced and limits:
        yield Compared(("site", "max_gpus"), most, most == min(limits), min(limits), QOS)
    if (account := site.get("account")) and slurm.accounts:
        agrees = any(clean_environment.has_form(n, account) for n in slurm.accounts)
        yield Compared(("site", "account"), account, agrees, f"your {', '.join(slurm.accounts)}", ACCOUNTS)
