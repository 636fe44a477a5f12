"""Detect ranks that hang, and which one blocks the others."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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
        waiting: the other ranks.
        silent: seconds since the last heartbeat of those behind.
        step: optimizer steps that those behind have done.
    """

    behind: tuple[RankStatus, ...]
    waiting: tuple[RankStatus, ...]
    silent: float
    step: int

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of the ranks behind."""
        return tuple(r.rank for r in self.behind)


def limit(rank: RankStatus, bound: float) -> float:
    """Return the silence in seconds that is too long for a rank in its current section; `bound` is the longest allowed."""
    if rank.section == "start":
        return max(bound, START_S)
    if rank.section not in LEARNT or rank.beats < ENOUGH:
        return bound
    return min(bound, max(FLOOR_S, FACTOR * rank.longest))


def find_hang(ranks: Iterable[RankStatus], bound: float) -> Hang | None:
    """Return a hang if the ranks behind have been silent for too long, or all ranks for longer than `bound` seconds."""
    working = [r for r in ranks if not r.ended]
    if not working:
        return None
    behind = least_progress(working)
    late = all(r.silent > limit(r, bound) for r in behind)
    if not late and not all(r.silent > max(bound, limit(r, bound)) for r in working):
        return None
    behind = stuck_ranks(behind)
    numbers = {r.rank for r in behind}
    waiting = tuple(r for r in working if r.rank not in numbers)
    return Hang(tuple(behind), waiting, min(r.silent for r in behind), min(r.step for r in behind))


def least_progress(ranks: Sequence[RankStatus]) -> list[RankStatus]:
    """Return the ranks with the least progress."""
    least = min(r.progress for r in ranks)
    return [r for r in ranks if r.progress == least]


def stuck_ranks(ranks: list[RankStatus]) -> list[RankStatus]:
    """Return those ranks whose process can't run, else all: the others wait at the same place, in a collective operation."""
    return [r for r in ranks if r.process in PROCESS] or ranks


def describe(hang: Hang, minority: Sequence[int] = ()) -> str:
    """Return one line: which ranks hang, where, and for how long.

    Args:
        hang: the hang.
        minority: ranks whose stack differs from that of most ranks, if all are at the same place.
    """
    behind = [r for r in hang.behind if r.rank in minority] or list(hang.behind)
    first = behind[0]
    process = f"; {PROCESS[first.process]}" if first.process in PROCESS else ""
    if first.section == "program":
        verb = "has" if len(behind) == 1 else "have"
        return f"{ranks_by_host(behind)} {verb} printed nothing for {hang.silent:.0f} s{process}."
    if first.section == "step":
        where = f"in step {first.step + 1}, {DOING.get(first.place, '')}".rstrip(", ")
    else:
        done = f" after {first.batch} batches" if first.batch else ""
        where = f"in the section '{first.section}'{done} {DOING.get(first.place, '')}".rstrip()
    held = sorted({r.rank for r in (*hang.behind, *hang.waiting)} - {r.rank for r in behind})
    waits = f"; {rank_names(held)} wait{'s' if len(held) == 1 else ''} for it" if held else ""
    return f"{ranks_by_host(behind)} hang{'s' if len(behind) == 1 else ''} {where}, for {hang.silent:.0f} s{process}{waits}."


def minority_ranks(tops: dict[int, str]) -> list[int]:
    """Return ranks whose innermost stack lines (`tops`, by rank) differ from those of the majority; empty without a majority."""
    counted = Counter(tops.values()).most_common(1)
    if not counted or counted[0][1] * 2 <= len(tops):
        return []
    return [rank for rank, top in tops.items() if top != counted[0][0]]


def ranks_by_host(ranks: Iterable[RankStatus]) -> str:
    """Return for example `rank 3 on node2` or `ranks 0-3 on node1, ranks 4-7 on node2`."""
    hosts: dict[str, list[int]] = {}
    for r in ranks:
        hosts.setdefault(r.host, []).append(r.rank)
    return ", ".join(f"{rank_names(numbers)} on {host}" for host, numbers in hosts.items())


def rank_names(numbers: Iterable[int]) -> str:
    """Return for example `rank 3` or `ranks 0-2,5`."""
    ordered, spans = sorted(set(numbers)), list[list[int]]()
    for n in ordered:
        if spans and spans[-1][1] == n - 1:
            spans[-1][1] = n
        else:
            spans.append([n, n])
    text = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
    return f"rank{'s' if len(ordered) > 1 else ''} {text}"
