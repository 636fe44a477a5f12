"""Detect ranks that are steadily slower than the others.

In synchronous training all steps take as long as those of the slowest rank: the others wait for it in collective operations. So this
compares a rank's own work: waiting for data, and computing until it waits for others (see `Heartbeat.computed`).
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from train_anywhere.features.hangs.hangs import ranks_by_host
from train_anywhere.monitor.ranks import RankStatus

WINDOW_S, BATCHES = 10.0, 5
"""Own work is averaged over windows of 10 s, and at least 5 batches."""

RATIO, SHARE, WINDOWS = 1.3, 0.1, 3
"""A rank is slow if its own work takes 1.3 times the median of the others, and the difference is at least a tenth of the step, in 3
windows in a row: a short disturbance or a smaller share is not worth a message."""

CHANGE = 1.3
"""A slow rank is reported again if its factor changes by this ratio."""


@dataclass(frozen=True)
class Pace:
    """Seconds per batch of one rank, averaged over one window.

    Attributes:
        own: time of the rank's own work.
        data: the part of `own` spent waiting for data.
        whole: time of the whole batch.
    """

    own: float
    data: float
    whole: float


class Stragglers:
    """Detects slow ranks from one update to the next.

    Args:
        window: seconds over which own work is averaged.

    Attributes:
        factors: for each slow rank, the time of its own work divided by the median of the others.
    """

    def __init__(self, window: float = WINDOW_S) -> None:
        self.window = window
        self.factors: dict[int, float] = {}
        self._from: dict[int, RankStatus] = {}
        self._rows: dict[int, list[float]] = {}
        self._reported: dict[int, float] = {}

    def update(self, ranks: Iterable[RankStatus]) -> list[str]:
        """Return lines for the log about ranks that became slow, changed or recovered."""
        now = {r.rank: r for r in ranks}
        if self._from.keys() != now.keys():
            self._from = now
            return []
        if not all(self._complete(self._from[n], r) for n, r in now.items()):
            return []
        paces = {n: pace(self._from[n], r) for n, r in now.items()}
        self._from = now
        ordered = sorted(p.own for p in paces.values())
        return [line for n in sorted(now) if (line := self._check(now[n], paces[n], ordered))]

    def _complete(self, before: RankStatus, after: RankStatus) -> bool:
        return after.clock - before.clock >= self.window and after.trained - before.trained >= BATCHES

    def _check(self, rank: RankStatus, own: Pace, ordered: Sequence[float]) -> str | None:
        number = rank.rank
        if len(ordered) < 2:
            return None
        usual = median_of_others(ordered, own.own)
        factor = own.own / usual if usual > 0 else 1.0
        slow = factor >= RATIO and own.own - usual >= SHARE * own.whole
        rows = self._rows[number] = [*self._rows.get(number, []), factor][-WINDOWS:] if slow else []
        if not slow and number in self._reported and factor < (1 + RATIO) / 2:
            del self._reported[number], self.factors[number]
            return f"{ranks_by_host([rank])} is as fast as the others again."
        if len(rows) < WINDOWS:
            return None
        self.factors[number] = found = median(rows)
        if 1 / CHANGE < found / self._reported.get(number, 1e9) < CHANGE:
            return None
        self._reported[number] = found
        return f"{ranks_by_host([rank])} is slow: {sentence(found, own, usual)}"


def median_of_others(ordered: Sequence[float], own: float) -> float:
    """Return the median of sorted values without `own`. Sorting once keeps this fast: each of thousands of ranks is compared."""
    at, count = bisect_left(ordered, own), len(ordered) - 1

    def other(index: int) -> float:
        return ordered[index if index < at else index + 1]

    return (other((count - 1) // 2) + other(count // 2)) / 2


def pace(before: RankStatus, after: RankStatus) -> Pace:
    """Return the seconds per batch between two states of a rank."""
    batches = after.trained - before.trained
    whole, own, data = after.clock - before.clock, after.own - before.own, after.data - before.data
    return Pace(own / batches, data / batches, whole / batches)


def sentence(factor: float, own: Pace, usual: float) -> str:
    """Return how slow a rank is, as the end of a sentence."""
    of_data = f", of which {1000 * own.data:.1f} ms wait for data" if own.data > own.own / 2 else ""
    return (
        f"its own work takes {factor:.1f} times as long as that of the others ({1000 * own.own:.1f} ms a batch{of_data}; "
        f"median of the others {1000 * usual:.1f} ms), and all ranks wait for it."
    )
