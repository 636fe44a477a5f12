"""The rank of this process and the hosts of the others, determined once at the start.

Slurm's notation for hosts, `gpu[0012-0014,20]`, is parsed in Python instead of by `scontrol show hostnames`. Leading zeros are part of a
name. The syntax is that of Slurm's hostlist.c; the tests compare with scontrol.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from train_anywhere.errors import TopologyError

ZERO_EXIT_LAUNCHERS = ("torchrun", "mpirun", "horovodrun")
"""Launchers that change any exit code but 0 and print a page about it. The batch script reads the state that rank 0 recorded."""

EXAMPLE = "TRAIN_HOSTS=node1:2,node2:1 (host:ranks in the order of the ranks)"
"""What a user has to export, for messages."""


@dataclass(frozen=True)
class Topology:
    """The rank of this process, and the nodes and ranks of the run.

    Attributes:
        rank, world_size: number of this process, and number of processes.
        local_rank, local_world_size: the same on this node.
        node_rank, nodes: number of this node, and number of nodes.
        coordinator_address, coordinator_port: host and port where rank 0 listens; port 0 for a single rank: any free one.
        launched_by: the launcher: one of `LAUNCHERS`, local or none.
        hosts: the hosts with their ranks, of several nodes; empty if they are not known.
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
    hosts: tuple[tuple[str, int], ...] = ()

    @property
    def rendezvous_port(self) -> int:
        """The port of rank 0: the next one if the launcher listens at the coordinator's itself."""
        if self.launched_by == "torchrun":
            return self.coordinator_port + 1
        return self.coordinator_port

    def layout(self) -> list[tuple[str, int]]:
        """Return host and ranks of each node, in rank order. Raises TopologyError if unknown."""
        if self.nodes == 1:
            return [(self.coordinator_address, self.world_size)]
        if not self.hosts:
            raise TopologyError(
                f"{self.launched_by} started {self.world_size} ranks on {self.nodes} nodes, but their hosts are "
                f"unknown: export {EXAMPLE}, {self.world_size} in all."
            )
        return [*self.hosts]


MAX_HOSTS = 2**16
"""Limit of names in one list, the same as Slurm's MAX_RANGE."""

_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")


def expand_hosts(hosts: str) -> list[str]:
    """Return all names of a list in Slurm's order."""
    parts = re.split(r",(?![^\[]*\])", hosts.strip())
    if not all(_NAME.fullmatch(_BRACKETS.sub("0", part)) for part in parts):
        raise TopologyError(f"'{hosts}' is not a list of hosts such as gpu[01-04],gpu07.")
    names: list[str] = []
    for part in parts:
        pieces = _BRACKETS.split(part)  # text, ranges, text, ranges, ..., text
        bounds = [_bounds(ranges) for ranges in pieces[1::2]]
        counts = (sum(int(high) - int(low) + 1 for low, high in spans) for spans in bounds)
        if (count := len(names) + math.prod(counts)) > MAX_HOSTS:
            raise TopologyError(f"'{hosts}' lists {count} entries, and no job has more than {MAX_HOSTS}.")
        numbers = [
            [f"{n:0{len(low)}}" for low, high in spans for n in range(int(low), int(high) + 1)]
            for spans in bounds
        ]
        # the numbers of the last brackets change first, then those of the first, the second, ...
        for *others, last in itertools.product(*numbers[-2::-1], numbers[-1] if numbers else [""]):
            found = [*others[::-1], last]
            names.append("".join(map("".join, itertools.zip_longest(pieces[::2], found, fillvalue=""))))
    return names


def _bounds(text: str) -> list[tuple[str, str]]:
    """Return the ends of each range: `0012-0014,20` gives ("0012", "0014") and ("20", "20")."""
    found = [_RANGE.fullmatch(item) for item in text.split(",")]
    bounds = [(match[1], match[2] or match[1]) for match in found if match]
    if len(bounds) < len(found) or any(int(low) > int(high) for low, high in bounds):
        raise TopologyError(f"'[{text}]' is not a range of hosts such as [01-04,07].")
    return bounds


def ranges(numbers: Iterable[int], digits: int = 1) -> str:
    """Format numbers as in Slurm's lists: 0-3,7."""
    spans: list[list[int]] = []
    for n in sorted(numbers):
        if spans and n == spans[-1][1] + 1:
            spans[-1][1] = n
        else:
            spans.append([n, n])
    return ",".join("-".join(f"{n:0{digits}}" for n in dict.fromkeys(span)) for span in spans)


def fold_hosts(names: Iterable[str]) -> str:
    """Return a list of names as Slurm shortens it, such as `gpu[01-31],login`, by their last numbers."""
    groups: dict[tuple[str, str, int], list[int]] = {}
    for name in names:
        head, number, end = re.fullmatch(r"(.*?)(\d*)(\D*)", name, re.DOTALL).groups()  # type: ignore[union-attr]
        groups.setdefault((head, end, len(number)), []).append(int(number or 0))
    folded = {key: ranges(found, key[2]) if key[2] else "" for key, found in groups.items()}
    return ",".join(
        f"{head}[{text}]{end}" if re.search("[-,]", text) else f"{head}{text}{end}"
        for (head, end, _), text in folded.items()
    )
