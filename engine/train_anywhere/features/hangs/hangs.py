"""When ranks hang, and which one holds the others up."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from train_anywhere.monitor.ranks import GONE, Seen

FACTOR, FLOOR_S, ENOUGH = 5.0, 180.0, 20
"""A silence is too long at 5 times the longest one of that section so far, as in NVIDIA's resiliency extension (`safety_factor`),
once there were 20 beats. Not before 3 minutes: a shared disk that answers late is no hang; NCCL gives up after 10."""

START_S = 600.0
"""A start is given 10 minutes even where `monitor.hang_minutes` is less: a framework's import from a shared disk takes minutes."""

LEARNT = ("step", "validation", "test")
"""Sections of many equal parts; what a start, a checkpoint or the end takes says nothing of the next one."""

PROCESS = {
    "T": "its process is stopped",
    "t": "its process is stopped by a debugger",
    "D": "its process waits for a disk",
    GONE: "its process has ended",
}
DOING = {
    "importing": "while it imports",
    "meeting": "while it waits for the others to come",
    "preparing": "while it prepares data and model",
    "data": "while it waits for data",
    "forward": "in the forward pass",
    "backward": "after the forward pass, where it waits for others or computes gradients",
}


@dataclass(frozen=True)
class Hang:
    """No progress for too long.

    Attributes:
        behind: the ranks that the others wait for; all, if none is behind the others.
        waiting: the others.
        silent: seconds without a sign of life of those behind.
        step: the step they are in.
    """

    behind: tuple[Seen, ...]
    waiting: tuple[Seen, ...]
    silent: float
    step: int

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of the ranks that are behind."""
        return tuple(r.rank for r in self.behind)


def limit(rank: Seen, bound: float) -> float:
    """Seconds of silence that are too long for a rank where it is now; `bound` is the longest allowed."""
    if rank.section == "start":
        return max(bound, START_S)
    if rank.section not in LEARNT or rank.beats < ENOUGH:
        return bound
    return min(bound, max(FLOOR_S, FACTOR * rank.longest))


def find_hang(ranks: Iterable[Seen], bound: float) -> Hang | None:
    """A hang, if those behind have been silent for too long, or all ranks for longer than `bound`."""
    working = [r for r in ranks if not r.ended]
    if not working:
        return None
    behind = furthest_behind(working)
    late = all(r.silent > limit(r, bound) for r in behind)
    if not late and not all(r.silent > max(bound, limit(r, bound)) for r in working):
        return None
    behind = stuck(behind)
    numbers = {r.rank for r in behind}
    waiting = tuple(r for r in working if r.rank not in numbers)
    return Hang(tuple(behind), waiting, min(r.silent for r in behind), min(r.step for r in behind))


def furthest_behind(ranks: Sequence[Seen]) -> list[Seen]:
    """The ranks with the least progress."""
    least = min(r.progress for r in ranks)
    return [r for r in ranks if r.progress == least]


def stuck(ranks: list[Seen]) -> list[Seen]:
    """Among ranks at the same place, those whose process can't go on, if any: a collective holds the others at that very place."""
    return [r for r in ranks if r.process in PROCESS] or ranks


def describe(hang: Hang, minority: Sequence[int] = ()) -> str:
    """One line: which rank, where, and for how long.

    Args:
        minority: ranks whose stack is another than that of most, if all are at the same place.
    """
    behind = [r for r in hang.behind if r.rank in minority] or list(hang.behind)
    first = behind[0]
    process = f"; {PROCESS[first.process]}" if first.process in PROCESS else ""
    if first.section == "step":
        where = f"in step {first.step + 1}, {DOING.get(first.place, '')}".rstrip(", ")
    else:
        done = f" after {first.batch} batches" if first.batch else ""
        where = f"in the section '{first.section}'{done} {DOING.get(first.place, '')}".rstrip()
    held = sorted({r.rank for r in (*hang.behind, *hang.waiting)} - {r.rank for r in behind})
    waits = f"; {named(held)} wait{'s' if len(held) == 1 else ''} for it" if held else ""
    return f"{of_hosts(behind)} hang{'s' if len(behind) == 1 else ''} {where}, for {hang.silent:.0f} s{process}{waits}."


def elsewhere(tops: dict[int, str]) -> list[int]:
    """Ranks whose innermost lines (`tops`, by rank) differ from those of most; none, if no more than half agree."""
    counted = Counter(tops.values()).most_common(1)
    if not counted or counted[0][1] * 2 <= len(tops):
        return []
    return [rank for rank, top in tops.items() if top != counted[0][0]]


def of_hosts(ranks: Iterable[Seen]) -> str:
    """`rank 3 on node2`, `ranks 0-3 on node1, ranks 4-7 on node2`."""
    hosts: dict[str, list[int]] = {}
    for r in ranks:
        hosts.setdefault(r.host, []).append(r.rank)
    return ", ".join(f"{named(numbers)} on {host}" for host, numbers in hosts.items())


def named(numbers: Iterable[int]) -> str:
    """`rank 3`, `ranks 0-2,5`."""
    ordered, spans = sorted(set(numbers)), list[list[int]]()
    for n in ordered:
        if spans and spans[-1][1] == n - 1:
            spans[-1][1] = n
        else:
            spans.append([n, n])
    text = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
    return f"rank{'s' if len(ordered) > 1 else ''} {text}"
