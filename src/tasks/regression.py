"""Regression: squared error as the loss; mean absolute error and the share of variance explained as metrics."""

from collections.abc import Sequence

from train_anywhere import tasks as base


class Regression(base.Task):
    """Rows are those of a table, each with one or more numbers to predict; all of them weigh the same."""

    sums = ("squared", "absolute", "target", "target_squared", "count")
    metrics = {"loss": "min", "mae": "min", "r2": "max"}  # noqa: RUF012
    headline = "mae"
    unit = "rows"

    def measure(self, sums: Sequence[float]) -> dict[str, float]:
        """Mean squared error, mean absolute error, and R2 = 1 - squared errors / squared deviations from the mean.

        R2 is 0 where all targets are the same number: nothing is left to explain.
        """
        squared, absolute, target, target_squared, count = sums
        deviations = target_squared - target**2 / count
        r2 = 1 - squared / deviations if deviations > 0 else 0.0
        return {"loss": squared / count, "mae": absolute / count, "r2": r2}
