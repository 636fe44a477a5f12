"""Efficiency of a run on several ranks: the share of a step without data wait in which a rank does not wait for others.

A rank waits for the slowest rank, and for communication that is not hidden behind the backward pass. This wait is measured in
occasional steps, from the time when a rank has its own gradients to the time when it has their average. The measurement does not
show how far communication slows down the computation itself.
"""

import time
from collections.abc import Sequence

EVERY_S = 1.0
"""Seconds between two measured steps."""

WARM_UP = 5
"""Batches before the first measured one: they include compilation and the first use of the network."""


class Efficiency:
    """Sums of the measured steps, of this rank and of all.

    Attributes:
        share: share of a step, without its data wait, that the ranks spent waiting for each other; None if not measured.
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
        """Return whether to measure the step that starts now; `trained` batches are done."""
        return trained >= WARM_UP and time.monotonic() - self._last >= EVERY_S

    def add_step(self, whole: float, waited: float) -> None:
        """Add a measured step of `whole` seconds, `waited` of which were a wait for other ranks."""
        self.whole += whole
        self.waited += min(waited, whole)
        self._last = time.monotonic()

    def numbers(self) -> list[float]:
        """Return the sums of this rank, which the reduction of the metrics adds up over all ranks."""
        return [self.whole, self.waited]

    def set_sums(self, sums: Sequence[float]) -> None:
        """Set the share from the sums over all ranks."""
        whole, waited = sums
        self.share = waited / whole if whole else None
