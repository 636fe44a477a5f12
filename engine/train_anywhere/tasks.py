"""The part of a task that no framework knows: its numbers and their names."""

from collections.abc import Mapping, Sequence
from typing import Literal

__all__ = ["Task"]

PARTS = ("train", "val", "test")


class Task:
    """Base of every task. What is set here is read from the source at submission, so it must be written out as plain values.

    Attributes:
        sums: names of the sums over the rows of a batch.
        metrics: what is made of them, in the order in which they are written, and what is better of each.
        headline: the metric by which a checkpoint is the best.
        unit: what a row is, in the plural: the speed is shown as images/s. One of `sums`, if rows hold several: then that is counted.
    """

    sums: tuple[str, ...]
    metrics: Mapping[str, Literal["min", "max"]]
    headline: str
    unit: str = "samples"

    def measure(self, sums: Sequence[float]) -> dict[str, float]:
        """The metrics, by the names in `metrics`.

        Args:
            sums: by `sums`, over all ranks; something was counted.
        """
        raise NotImplementedError

    def units(self, sums: Sequence[float]) -> float | None:
        """How many of `unit` the sums hold; None: the task does not count them, and each is a row."""
        return sums[self.sums.index(self.unit)] if self.unit in self.sums else None

    def report(self, part: str, sums: Sequence[float]) -> dict[str, float]:
        """The metrics of a part, one of `PARTS`: {"val/loss": 0.1}; none where nothing was counted."""
        return {f"{part}/{name}": value for name, value in self.measure(sums).items()} if any(sums) else {}

    def names(self, *parts: str) -> list[str]:
        """The names of the metrics of some parts."""
        return [f"{part}/{name}" for part in parts for name in self.metrics]
