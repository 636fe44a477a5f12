"""Detect ranks that have not started or that hang, and which one blocks the others."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from train_anywhere.distributed.topology import ranges
from train_anywhere.errors import listed
from train_anywhere.monitor.ranks import GONE, RankStatus

FACTOR, FLOOR_S, ENOUGH = 5.0, 180.0, 20
"""A silence is too long at 5 times the longest one in that section so far, as in NVIDIA's resiliency extension (`safety_factor`),
after at least 20 heartbeats. The minimum is 3 minutes: a slow shared disk is not a hang, and NCCL gives up after 10."""

START_S = 600.0
"""A start may take 10 minutes even if `monitor.hang_minutes` is less: importing a framework from a shared disk takes minutes."""

LEARNT = ("step", "validation", "test")
"""Sections of many equal parts. The duration of a start, a checkpoint or an end does not predict the next one."""

PROCESS = {
    "T": "its process is stopped",
    "t": "its process is stopped by a debugger",
    "D": "its process waits for a disk",
    GONE: "its process has ended",
}
DOING = {
    "importing": "while it imports",
    "meeting": "while it waits for the others to start",
    "preparing": "while it prepares data and model",
    "data": "while it waits for data",
    "forward": "in the forward pass",
    "backward": "after the forward pass, while it waits for others or computes gradients",
}


@dataclass(frozen=True)
class Hang:
    """Ranks that have made no progress for too long.

    Attributes:
        behind: the ranks that the others wait for; all ranks, if none is behind.
        silent: seconds since the last heartbeat of those behind.
        step: optimizer steps that those behind have done.
    """

    behind: tuple[RankStatus, ...]
    waiting: tuple[RankStatus, ...]
    silent: float
    step: int


def limit(rank: RankStatus, bound: float) -> float:
    """Return the seconds of silence that are too long for a rank, at most `bound`."""
    if rank.section == "start":
        return max(bound, START_S)
    if rank.section not in LEARNT or rank.beats < ENOUGH:
        return bound
    return min(bound, max(FLOOR_S, FACTOR * rank.longest))


def find_hang(ranks: Iterable[RankStatus], bound: float) -> Hang | None:
    """Return a hang if the ranks behind, or all for `bound` seconds, are silent too long."""
    if not (working := [r for r in ranks if not r.ended]):
        return None
    least = min(r.progress for r in working)
    behind = [r for r in working if r.progress == least]
    late = all(r.silent > limit(r, bound) for r in behind)
    if not late and not all(r.silent > max(bound, limit(r, bound)) for r in working):
        return None
    # those whose process can't run, else all: the others wait at the same place, in a collective operation
    behind = [r for r in behind if r.process in PROCESS] or behind
    waiting = tuple(r for r in working if r not in behind)
    return Hang(tuple(behind), waiting, min(r.silent for r in behind), min(r.step for r in behind))


def describe(hang: Hang) -> str:
    """Return one line: which ranks hang, where, and for how long."""
    first, one = hang.behind[0], len(hang.behind) == 1
    who, section = ranks_by_host({r.rank: r.host for r in hang.behind}), first.section
    process = f"; {PROCESS[first.process]}" if first.process in PROCESS else ""
    if section == "program":
        return f"{who} {'has' if one else 'have'} printed nothing for {hang.silent:.0f} s{process}."
    if section == "step":
        where = f"in step {first.step + 1}, {DOING.get(first.place, '')}".rstrip(", ")
    else:
        done = f" after {first.batch} batches" if first.batch else ""
        where = f"in the section '{section}'{done} {DOING.get(first.place, '')}".rstrip()
    held = [r.rank for r in hang.waiting]
    waits = f"; {rank_names(held)} wait{'s' if len(held) == 1 else ''} for it" if held else ""
    return f"{who} hang{'s' if one else ''} {where}, for {hang.silent:.0f} s{process}{waits}."


def ranks_by_host(hosts: Mapping[int, str]) -> str:
    """Return for example `rank 3 on node2` or `ranks 0-3 on node1, ranks 4-7 on node2`; a host of "" is not known."""
    numbers: dict[str, list[int]] = {}
    for rank, host in hosts.items():
        numbers.setdefault(host, []).append(rank)
    return listed(rank_names(n) + (f" on {host}" if host else "") for host, n in numbers.items())


def rank_names(numbers: Iterable[int]) -> str:
    """Return for example `rank 3` or `ranks 0-2,5`."""
    found = {*numbers}
    return f"rank{'s' if len(found) > 1 else ''} {ranges(found)}"


PATIENCE_S, NO_RANK_S = 40.0, 600.0
"""Seconds after the first rank started: with the time until all nodes have written their state, less than a minute; and seconds to wait for
the first rank: nodes may still be loading a container."""


class StartupWatch:
    """Watch of the ranks' start, which reports once what is missing, and that all started.

    Args:
        expected: host of each rank, from the batch script; empty if unknown.
        patience: seconds after the start of the first rank.
        unwatched: ranks on nodes without a monitor process, which are not reported.
    """

    def __init__(
        self, expected: Mapping[int, str], patience: float = PATIENCE_S, unwatched: Collection[int] = ()
    ) -> None:
        self.expected, self.patience, self.unwatched = expected, patience, unwatched
        self._began: float | None = None
        self._first: float | None = None
        self._reported = set[int]()

    def update(self, ranks: Sequence[RankStatus], now: float) -> list[str]:
        """Return lines for the log. `now` is in seconds of this node's monotonic clock."""
        if not ranks:
            self._began = now if self._began is None else self._began
            if now - self._began < NO_RANK_S:
                return []
            self._began = math.inf  # report it once
            return [
                f"no rank has started after {NO_RANK_S:.0f} s: the launcher or the nodes can't start them."
            ]
        if self._first is None:
            self._first = now - max(r.seconds for r in ranks)
        late = self.late(ranks)
        if not late:
            reported, self._reported = self._reported, set()
            verb = "has" if len(reported) == 1 else "have"
            return [f"{rank_names(reported)} {verb} started: all ranks are connected."] if reported else []
        if now - self._first < self.patience or late.keys() <= self._reported:
            return []
        self._reported = {*late}
        return [self._describe(ranks, late, now - self._first)]

    def late(self, ranks: Sequence[RankStatus]) -> Mapping[int, RankStatus | None]:
        """Return ranks that others wait for, by number, with None for one that has not started."""
        starting = [r for r in ranks if r.section == "start"]
        meeting = any(r.place == "meeting" for r in starting)
        expected = {*range(ranks[0].world_size if ranks else 0)}
        missing = sorted(expected - {r.rank for r in ranks} - {*self.unwatched})
        if missing:
            return dict.fromkeys(missing) if meeting or len(starting) == len(ranks) else {}
        return {r.rank: r for r in starting if meeting and r.place == "importing"}

    def _describe(
        self, ranks: Sequence[RankStatus], late: Mapping[int, RankStatus | None], seconds: float
    ) -> str:
        waiting = [r.rank for r in ranks if r.rank not in late]
        wait = f"; {rank_names(waiting)} {'wait' if len(waiting) > 1 else 'waits'}" if waiting else ""
        if here := {n: r.host for n, r in late.items() if r}:
            verb = "is" if len(here) == 1 else "are"
            return f"{ranks_by_host(here)} {verb} still importing modules after {seconds:.0f} s{wait}."
        who = ranks_by_host({n: self.expected.get(n, "") for n in late})
        return f"{who} {'has' if len(late) == 1 else 'have'} not started, {seconds:.0f} s after the first rank{wait}."
