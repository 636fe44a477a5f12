"""Slurm's notation for hosts and tasks: `gpu[0012-0014,20]` and `2(x3),1`.

Read here instead of by `scontrol show hostnames`, because a rank must not have to start a process; leading
zeros are part of a name. Meaning as in Slurm's hostlist.c; the tests compare with scontrol.
"""

from __future__ import annotations

import itertools
import re

from src.errors import TopologyError

_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def first_host(hosts: str) -> str:
    """First name of a host list, without expanding it: `gpu[0012-0014],login` gives `gpu0012`."""
    head = _split(hosts)[0]
    while found := _BRACKETS.search(head):
        first = re.split("[,-]", found[1])[0]
        head = head[: found.start()] + first + head[found.end() :]
    return head


def expand_hosts(hosts: str) -> list[str]:
    """All names of a host list in Slurm's order: `rack[1-2]node[3-4]` begins rack1node3, rack1node4."""
    return [name for part in _split(hosts) for name in _expand(part)]


def expand_tasks(tasks: str) -> list[int]:
    """Tasks of each node: `2(x3),1` gives [2, 2, 2, 1]."""
    counts: list[int] = []
    for part in tasks.split(","):
        found = _TASKS.fullmatch(part)
        if not found:
            raise TopologyError(f"'{tasks}' is not a list of tasks per node such as 2(x3),1.")
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


def _split(hosts: str) -> list[str]:
    """Split at the commas outside of brackets."""
    parts = re.split(r",(?![^\[]*\])", hosts.strip())
    if not all(parts) or any(re.search(r"[\[\]]", _BRACKETS.sub("", part)) for part in parts):
        raise TopologyError(f"'{hosts}' is not a list of hosts such as gpu[01-04],gpu07.")
    return parts


def _expand(part: str) -> list[str]:
    pieces = _BRACKETS.split(part)  # text, ranges, text, ranges, ..., text
    choices = [_ranges(piece) if i % 2 else [piece] for i, piece in enumerate(pieces)]
    return ["".join(choice) for choice in itertools.product(*choices)]


def _ranges(text: str) -> list[str]:
    """`0012-0014,20` gives 0012, 0013, 0014, 20."""
    names: list[str] = []
    for item in text.split(","):
        low, _, high = item.partition("-")
        if not low.isdigit() or not (high or low).isdigit():
            raise TopologyError(f"'[{text}]' is not a range of hosts such as [01-04,07].")
        names += [f"{number:0{len(low)}}" for number in range(int(low), int(high or low) + 1)]
    return names
