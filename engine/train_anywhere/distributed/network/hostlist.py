"""Slurm's notation for hosts and tasks: `gpu[0012-0014,20]` and `2(x3),1`.

Parsed in Python instead of by `scontrol show hostnames`, so that a rank starts no process. Leading zeros are part of a name. The
syntax is that of Slurm's hostlist.c; the tests compare with scontrol.
"""

from __future__ import annotations

import itertools
import math
import re

from train_anywhere.errors import TopologyError

MAX_HOSTS = 2**16
"""Limit of names in one list, and of tasks on one node; the same as Slurm's MAX_RANGE."""

_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_TASKS = re.compile(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?")


def first_host(hosts: str) -> str:
    """Return the first name of a host list, without expanding it: `gpu[0012-0014],login` gives `gpu0012`."""
    head = _split(hosts)[0]
    while found := _BRACKETS.search(head):
        first = re.split("[,-]", found[1])[0]
        head = head[: found.start()] + first + head[found.end() :]
    return head


def expand_hosts(hosts: str) -> list[str]:
    """Return all names of a host list in Slurm's order: `rack[1-2]node[3-4]` starts with rack1node3, rack1node4."""
    names: list[str] = []
    for part in _split(hosts):
        pieces = _BRACKETS.split(part)  # text, ranges, text, ranges, ..., text
        _refuse_long(hosts, len(names) + math.prod(_size(p) for p in pieces[1::2]))
        choices = [_ranges(piece) if i % 2 else [piece] for i, piece in enumerate(pieces)]
        names += ["".join(choice) for choice in itertools.product(*choices)]
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
    """Return first and last number of each range: `0012-0014,20` gives ("0012", "0014") and ("20", "20")."""
    found = [_RANGE.fullmatch(item) for item in text.split(",")]
    bounds = [(match[1], match[2] or match[1]) for match in found if match]
    if len(bounds) < len(found) or any(int(low) > int(high) for low, high in bounds):
        raise TopologyError(f"'[{text}]' is not a range of hosts such as [01-04,07].")
    return bounds


def _size(text: str) -> int:
    return sum(int(high) - int(low) + 1 for low, high in _bounds(text))


def _ranges(text: str) -> list[str]:
    """Return all numbers of the ranges: `0012-0014,20` gives 0012, 0013, 0014, 20."""
    bounds = _bounds(text)
    return [f"{n:0{len(low)}}" for low, high in bounds for n in range(int(low), int(high) + 1)]


def _refuse_long(text: str, count: int) -> None:
    if count > MAX_HOSTS:
        raise TopologyError(f"'{text}' lists {count} entries, and no job has more than {MAX_HOSTS}.")
