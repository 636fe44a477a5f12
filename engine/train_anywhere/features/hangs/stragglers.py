"""Ranks that are steadily slower than the others.

In synchronous training every rank takes as long for a step as the slowest: the others wait for it in the collectives. So what is
compared is a rank's own work: waiting for data, and computing until it waits for others (see `Heartbeat.computed`).
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from train_anywhere.features.hangs.hangs import of_hosts
from train_anywhere.monitor.ranks import Seen

WINDOW_S, BATCHES = 10.0, 5
"""Own work is averaged over windows of 10 s, and at least 5 batches."""

RATIO, SHARE, WINDOWS = 1.3, 0.1, 3
"""A rank is slow if its own work takes 1.3 times that of the median of the others, and the difference is a tenth of the whole step, in
3 windows in a row: a neighbour that is busy for a moment is no news, and less than a tenth is not worth a look."""

CHANGE = 1.3
"""A rank that was named is named again if its factor changes by as much."""


@dataclass(frozen=True)
class Pace:
    """Seconds of a batch, in one window.

    Attributes:
        own: of the rank's own work.
        data: of those that waited for data.
        whole: all.
    """

    own: float
    data: float
    whole: float


class Stragglers:
    """Finds slow ranks from one look to the next.

    Args:
        window: seconds over which own work is averaged.

    Attributes:
        factors: of the slow ranks, how many times as long as the others they take.
    """

    def __init__(self, window: float = WINDOW_S) -> None:
        self.window = window
        self.factors: dict[int, float] = {}
        self._from: dict[int, Seen] = {}
        self._rows: dict[int, list[float]] = {}
        self._said: dict[int, float] = {}

    def look(self, ranks: Iterable[Seen]) -> list[str]:
        """What is to be said of them now."""
        now = {r.rank: r for r in ranks}
        if self._from.keys() != now.keys():
            self._from = now
            return []
        if not all(self._complete(self._from[n], r) for n, r in now.items()):
            return []
        paces = {n: pace(self._from[n], r) for n, r in now.items()}
        self._from = now
        ordered = sorted(p.own for p in paces.values())
        return [line for n in sorted(now) if (line := self._judge(now[n], paces[n], ordered))]

    def _complete(self, before: Seen, after: Seen) -> bool:
        return after.clock - before.clock >= self.window and after.trained - before.trained >= BATCHES

    def _judge(self, rank: Seen, own: Pace, ordered: Sequence[float]) -> str | None:
        number = rank.rank
        if len(ordered) < 2:
            return None
        usual = median_of_others(ordered, own.own)
        factor = own.own / usual if usual > 0 else 1.0
        slow = factor >= RATIO and own.own - usual >= SHARE * own.whole
        rows = self._rows[number] = [*self._rows.get(number, []), factor][-WINDOWS:] if slow else []
        if not slow and number in self._said and factor < (1 + RATIO) / 2:
            del self._said[number], self.factors[number]
            return f"{of_hosts([rank])} is as fast as the others again."
        if len(rows) < WINDOWS:
            return None
        self.factors[number] = found = median(rows)
        if 1 / CHANGE < found / self._said.get(number, 1e9) < CHANGE:
            return None
        self._said[number] = found
        return f"{of_hosts([rank])} is slow: {sentence(found, own, usual)}"


def median_of_others(ordered: Sequence[float], own: float) -> float:
    """The median without one value; of thousands of ranks each is compared, so they are sorted once."""
    at, count = bisect_left(ordered, own), len(ordered) - 1

    def other(index: int) -> float:
        return ordered[index if index < at else index + 1]

    return (other((count - 1) // 2) + other(count // 2)) / 2


def pace(before: Seen, after: Seen) -> Pace:
    """Between two looks at a rank."""
    batches = after.trained - before.trained
    whole, own, data = after.clock - before.clock, after.own - before.own, after.data - before.data
    return Pace(own / batches, data / batches, whole / batches)


def sentence(factor: float, own: Pace, usual: float) -> str:
    """What a slow rank costs."""
    of_data = f", of which {1000 * own.data:.1f} ms wait for data" if own.data > own.own / 2 else ""
    return (
        f"its own work takes {factor:.1f} times as long as that of the others ({1000 * own.own:.1f} ms a batch{of_data}; "
        f"median of the others {1000 * usual:.1f} ms), and all ranks wait for it."
    )
