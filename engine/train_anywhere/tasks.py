"""The base class of tasks of version 0.1. Only in version 0.2: a task is a LightningModule or a keras.Model."""

from collections.abc import Mapping, Sequence
from typing import Literal

__all__ = ["Task"]

OLD_TASK = "{} is a task of version 0.1, and version 0.3 will not train it: make it a module, see docs/how-to/your-code.md."
"""The note of a run that trains such a task."""


class Task:
    """Base class of the tasks of version 0.1, whose attributes are literals.

    Attributes:
        sums: names of the sums over the rows of a batch.
        metrics: metrics computed from the sums, each with "min" or "max" for the better value.
        headline: the metric that decides which checkpoint is the best.
    """

    sums: tuple[str, ...]
    metrics: Mapping[str, Literal["min", "max"]]
    headline: str

    def measure(self, sums: Sequence[float]) -> dict[str, float]:
        """Return the metrics, by the names in `metrics`, of sums over all ranks."""
        raise NotImplementedError

    def report(self, split: str, sums: Sequence[float]) -> dict[str, float]:
        """Return the metrics of a split, such as {"val/loss": 0.1}. Empty if all sums are zero."""
        return {f"{split}/{name}": value for name, value in self.measure(sums).items()} if any(sums) else {}
