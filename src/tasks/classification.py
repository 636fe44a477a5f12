"""Classification: cross-entropy and accuracy."""

from collections.abc import Sequence

from train_anywhere import tasks as base


class Classification(base.Task):
    """Classification of rows with one label each."""

    sums = ("loss", "right", "count")
    metrics = {"loss": "min", "acc": "max"}  # noqa: RUF012
    headline = "acc"
    unit = "images"

    def measure(self, sums: Sequence[float]) -> dict[str, float]:
        """Return the mean cross-entropy, and the accuracy as a fraction."""
        loss, right, count = sums
        return {"loss": loss / count, "acc": right / count}
