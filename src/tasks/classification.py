"""Classification: cross-entropy and the share of right answers."""

from collections.abc import Sequence

from train_anywhere import tasks as base


class Classification(base.Task):
    """Rows are images, each with one label."""

    sums = ("loss", "right", "count")
    metrics = {"loss": "min", "acc": "max"}  # noqa: RUF012
    headline = "acc"
    unit = "images"

    def measure(self, sums: Sequence[float]) -> dict[str, float]:
        """Mean cross-entropy, and right answers as a fraction."""
        loss, right, count = sums
        return {"loss": loss / count, "acc": right / count}
