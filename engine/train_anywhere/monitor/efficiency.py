"""The efficiency of a run on several ranks: the share of a step's computing in which a rank does not wait for others.

What a rank waits for is the slowest rank and the network, as far as the gradients' way is not hidden behind the backward pass. It is
measured in a step now and then: from the moment when a rank's own gradients are there to the moment when it has their average.
What can't be seen this way: that the network slows down the computing itself.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

EVERY_S = 1.0
"""Seconds between two steps that are measured."""

SETTLED = 5
"""Batches before the first one: they hold compilation and the first use of the network."""


class Efficiency:
    """Adds up what was measured, of this rank and of all.

    Attributes:
        share: of a step without its wait for data, that the ranks spent waiting for each other; None: nothing was measured.
    """

    def __init__(self) -> None:
        self.whole = self.waited = 0.0
        self.share: float | None = None
        self._last = 0.0

    @property
    def value(self) -> float | None:
        """The efficiency, from 0 to 1."""
        return None if self.share is None else round(1 - self.share, 4)

    def due(self, trained: int) -> bool:
        """Whether a step that begins now is to be measured; `trained` batches are done."""
        return trained >= SETTLED and time.monotonic() - self._last >= EVERY_S

    def measured(self, whole: float, waited: float) -> None:
        """One step: `waited` of `whole` seconds."""
        self.whole += whole
        self.waited += min(waited, whole)
        self._last = time.monotonic()

    def numbers(self) -> list[float]:
        """Of this rank, to be added up over all of them, by the reduction that all ranks do anyway."""
        return [self.whole, self.waited]

    def agree(self, sums: Sequence[float]) -> None:
        """The sums over all ranks."""
        whole, waited = sums
        self.share = waited / whole if whole else None


@dataclass(frozen=True)
class StepTime:
    """Where the training of a run spent its seconds, over all attempts; `compute` holds `others` too where that was not measured: None."""

    compute: float
    data: float
    others: float | None
    checkpoint: float

    @property
    def whole(self) -> float:
        """All four."""
        return self.compute + self.data + (self.others or 0.0) + self.checkpoint

    @property
    def efficiency(self) -> float | None:
        """From 0 to 1; None where it was not measured."""
        computing = self.compute + (self.others or 0.0)
        return None if self.others is None or not computing else self.compute / computing


def step_time(attempts: Sequence[Mapping[str, Any]]) -> StepTime:
    """That of a run, from the attempts in its run.json."""
    known = [a["seconds"] for a in attempts if isinstance(a.get("seconds"), Mapping)]

    def total(name: str) -> float:
        return sum(s[name] for s in known if isinstance(s.get(name), int | float))

    others = total("others") if any("others" in s for s in known) else None
    compute = total("step") - total("data") - (others or 0.0)
    return StepTime(max(0.0, compute), total("data"), others, total("checkpoint"))
