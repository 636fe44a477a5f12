"""The rank of this process and the hosts of the others, determined once at the start.

Slurm's notation for hosts and tasks, `gpu[0012-0014,20]` and `2(x3),1`, is parsed in Python instead of by `scontrol show hostnames`, so
that a rank starts no process. Leading zeros are part of a name. The syntax is that of Slurm's hostlist.c; the tests compare with scontrol.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from dataclasses import dataclass

from train_anywhere.errors import TopologyError

ZERO_EXIT_LAUNCHERS = ("torchrun", "mpirun", "horovodrun")
"""Launchers that change any exit code but 0 and print a page about it. The batch script reads the state that rank 0 recorded."""


@dataclass(frozen=True)
class Topology:
    """The rank of this process, and the nodes and ranks of the run.

    Attributes:
        rank, world_size: number of this process, and number of processes.
        local_rank, local_world_size: the same on this node.
        node_rank, nodes: number of this node, and number of nodes.
        coordinator_address, coordinator_port: host and port where rank 0 listens; port 0 for a single rank: any free one.
        launched_by: the launcher: one of `LAUNCHERS`, local or none.
        node_list, tasks_per_node: the hosts and their ranks, in Slurm's notation; "" if the launcher does not pass them.
    """

    rank: int = 0
    local_rank: int = 0
    node_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    nodes: int = 1
    coordinator_address: str = "127.0.0.1"
    coordinator_port: int = 0
    launched_by: str = "none"
    node_list: str = ""
    tasks_per_node: str = ""

    @property
    def rendezvous_port(self) -> int:
        """The port of rank 0: the next one if the launcher listens at the coordinator's itself."""
        if self.launched_by == "torchrun":
            return self.coordinator_port + 1
        return self.coordinator_port

    def layout(self) -> list[tuple[str, int]]:
        """Return host and ranks of each node, in rank order. Raises TopologyError if unknown."""
        if not self.node_list and self.nodes == 1:
            return [(self.coordinator_address, self.world_size)]
        hosts, tasks = expand_hosts(self.node_list or "unknown"), expand_tasks(self.tasks_per_node or "0")
        if len(hosts) != len(tasks) or sum(tasks) != self.world_size:
            raise TopologyError(
                f"{self.launched_by} started {self.world_size} ranks on {self.nodes} nodes, but their hosts are "
                f"{f'{self.node_list} with {self.tasks_per_node}' if self.node_list else 'unknown'}: export "
                f"TRAIN_HOSTS=node1:2,node2:1 (host:ranks in the order of the ranks, {self.world_size} in "
                "all)."
            )
        return list(zip(hosts, tasks, strict=True))

    def hosts(self) -> list[str]:
        """Return the nodes in the order of their ranks. Only this one if the others are unknown."""
        return expand_hosts(self.node_list) if self.node_list else [os.uname().nodename]


MAX_HOSTS = 2**16
"""Limit of names in one list, and of tasks on one node; the same as Slurm's MAX_RANGE."""

_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_TASKS = re.compile(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?")


def expand_hosts(hosts: str) -> list[str]:
    """Return all names of a list in Slurm's order."""
    names: list[str] = []
    for part in _split(hosts):
        pieces = _BRACKETS.split(part)  # text, ranges, text, ranges, ..., text
        bounds = [_bounds(ranges) for ranges in pieces[1::2]]
        counts = (sum(int(high) - int(low) + 1 for low, high in spans) for spans in bounds)
        _refuse_long(hosts, len(names) + math.prod(counts))
        numbers = [
            [f"{n:0{len(low)}}" for low, high in spans for n in range(int(low), int(high) + 1)]
            for spans in bounds
        ]
        # the numbers of the last brackets change first, then those of the first, the second, ...
        for *others, last in itertools.product(*numbers[-2::-1], numbers[-1] if numbers else [""]):
            found = [*others[::-1], last]
            names.append("".join(map("".join, itertools.zip_longest(pieces[::2], found, fillvalue=""))))
    return names


def expand_tasks(tasks: str) -> list[int]:
    """Return the tasks of each node: `2(x3),1` gives [2, 2, 2, 1]."""
    counts: list[int] = []
    for part in tasks.split(","):
        found = _TASKS.fullmatch(part)
        if not found:
            raise TopologyError(f"'{tasks}' is not a list of tasks per node such as 2(x3),1.")
        _refuse_long(tasks, max(int(found[1]), len(counts) + int(found[2] or 1)))
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


def _split(hosts: str) -> list[str]:
    """Split a host list at the commas outside of brackets."""
    parts = re.split(r",(?![^\[]*\])", hosts.strip())
    if not all(_NAME.fullmatch(_BRACKETS.sub("0", part)) for part in parts):
        raise TopologyError(f"'{hosts}' is not a list of hosts such as gpu[01-04],gpu07.")
    for ranges in (found for part in parts for found in _BRACKETS.findall(part)):
        _bounds(ranges)
    return parts


def _bounds(text: str) -> list[tuple[str, str]]:
    """Return the ends of each range: `0012-0014,20` gives ("0012", "0014") and ("20", "20")."""
    found = [_RANGE.fullmatch(item) for item in text.split(",")]
    bounds = [(match[1], match[2] or match[1]) for match in found if match]
    if len(bounds) < len(found) or any(int(low) > int(high) for low, high in bounds):
        raise TopologyError(f"'[{text}]' is not a range of hosts such as [01-04,07].")
    return bounds


def _refuse_long(text: str, count: int) -> None:
    if count > MAX_HOSTS:
        raise TopologyError(f"'{text}' lists {count} entries, and no job has more than {MAX_HOSTS}.")
