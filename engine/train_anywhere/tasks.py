"""The part of a task that is independent of the framework: its metrics and their names."""

from collections.abc import Mapping, Sequence
from typing import Literal

__all__ = ["Task"]


class Task:
    """Base class of all tasks. Write its attributes as literals: they are read as source.

    Attributes:
        sums: names of the sums over the rows of a batch.
        metrics: metrics computed from the sums, in the order of the logs, each with "min" or "max" for the better value.
        headline: the metric that decides which checkpoint is the best.
        unit: name of a row in the plural, as in images/s. If rows hold several units, one of `sums`, which counts them.

    A method `check_rows(rows, facts)` is optional: before the training it gets the first rows, as `read` of the data set returns
    them, and `facts` of the `Splits`, and raises a DataError if they do not suit the task.
    """

    sums: tuple[str, ...]
    metrics: Mapping[str, Literal["min", "max"]]
    headline: str
    unit: str = "samples"

    def measure(self, sums: Sequence[float]) -> dict[str, float]:
        """Return the metrics, by the names in `metrics`.

        Args:
            sums: sums over all ranks, in the order of `sums`; not all are zero.
        """
        raise NotImplementedError

    def units(self, sums: Sequence[float]) -> float | None:
        """Return the number of units in the sums. None if each row is one."""
        return sums[self.sums.index(self.unit)] if self.unit in self.sums else None

    def report(self, split: str, sums: Sequence[float]) -> dict[str, float]:
        """Return the metrics of a split, such as {"val/loss": 0.1}. Empty if all sums are zero."""
        return {f"{split}/{name}": value for name, value in self.measure(sums).items()} if any(sums) else {}

    def names(self, *splits: str) -> list[str]:
        """Return the names of the metrics of some splits, such as "val/loss"."""
        return [f"{split}/{name}" for split in splits for name in self.metrics]
