"""Read the facts about a site that Slurm's clients report, for its preset."""

import grp
import json
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import yaml

from train_anywhere.distributed import programs
from train_anywhere.errors import SchedulerError
from train_anywhere.slurm.script.clean_environment import user_name

TIMEOUT_S = 30.0
NODES, PARTITIONS, CONFIG = (f"scontrol show {what}" for what in ("nodes", "partitions", "config"))
ACCOUNTS = "sacctmgr show associations"


class Kind(NamedTuple):
    """Equal nodes of one partition, with the CPUs and MiB of a job."""

    partition: str
    gpu_type: str | None
    gpus: int
    cpus: int
    mem: int


class SlurmFacts:
    """The answers of Slurm. A client that fails leaves its part empty, and a message.

    Attributes:
        kinds: number of nodes of each kind with GPUs, in any state, because a node that is down still belongs to the site.
        up: partitions with GPUs that accept jobs.
        usable: those of `up` that are open to the user's groups and accounts, as far as these are known.
    """

    def __init__(self) -> None:
        self.failures: dict[str, str] = {}
        self.kinds: Counter[Kind] = Counter()
        found = [_settings(line) for line in self._query(PARTITIONS, "--all", "--oneliner")]
        self.partitions = {of["PartitionName"]: of for of in found if "PartitionName" in of}
        for line in self._query(NODES, "--all", "--oneliner"):
            self._add_node(_settings(line))
        state = {k.partition: self.partitions.get(k.partition, {}).get("State", "UP") for k in self.kinds}
        self.up = {name for name, of in state.items() if of == "UP"}
        config = "\n".join(self._query(CONFIG))
        # one database may have several clusters
        cluster = f"cluster={dict(re.findall(r'(?m)^(ClusterName) *= (.*)$', config)).get('ClusterName', '')}"
        self.accounts = {*self._query(ACCOUNTS, "format=account", "-nP", f"user={user_name()}", cluster)}
        self.usable = self._find_usable(cluster)
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
                self.kinds[Kind(partition, gpu_type, gpus, cpus_here, mem_here)] += 1


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
