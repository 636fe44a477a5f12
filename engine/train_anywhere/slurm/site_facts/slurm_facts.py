"""Read partitions, nodes, qualities of service and accounts from Slurm's clients."""

import grp
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import NamedTuple

from train_anywhere.distributed import programs
from train_anywhere.errors import SchedulerError
from train_anywhere.slurm.script.accounts import user_name

TIMEOUT_S = 30.0
NODES, PARTITIONS, CONFIG = (f"scontrol show {what}" for what in ("nodes", "partitions", "config"))
QOS, ACCOUNTS = "sacctmgr show qos", "sacctmgr show associations"


class Kind(NamedTuple):
    """Equal nodes of one partition: CPUs (and their cores, which a site may count instead) and MiB that a job can use."""

    partition: str
    gpu_type: str | None
    gpus: int
    cpus: tuple[int, int]
    mem: int


class SlurmFacts:
    """What Slurm reports. A client that is missing, fails or hangs leaves its part empty, and a message in `failures`.

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
        accounts, groups = {*self.accounts}, _group_names()
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
    """Yield type (None if untyped) and number of GPUs in a node's generic resources, such as gpu:a100:4(S:0-1),tmpfs:1T."""
    for gpu_type, count in re.findall(r"\bgpu:(?:([^:,(]+):)?([0-9]{1,6})(?=[(,]|$)", gres):
        if int(count):
            yield gpu_type or None, int(count)


def _allows(partition: dict[str, str], setting: str, names: Collection[str]) -> bool:
    """Return whether a list of a partition, such as AllowGroups, has one of the names, or is not set."""
    allowed = partition.get(setting, "ALL")
    return allowed == "ALL" or not {*allowed.split(",")}.isdisjoint(names)


def _group_names() -> set[str]:
    names = set()
    for number in {os.getgid(), *os.getgroups()}:
        with suppress(KeyError):
            names.add(grp.getgrgid(number).gr_name)
    return names


def _settings(line: str) -> dict[str, str]:
    """Return the settings in a line of scontrol. The first of a name counts, because comments come last."""
    return dict(reversed(re.findall(r"(?<!\S)(\w+)=(\S*)", line)))
