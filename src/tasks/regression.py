"""Regression: squared error as the loss; mean absolute error and R2 as metrics."""

from collections.abc import Sequence

from train_anywhere import tasks as base


class Regression(base.Task):
    """Regression on a table: each row has one or more numbers to predict, all with the same weight."""

    sums = ("squared", "absolute", "target", "target_squared", "count")
    metrics = {"loss": "min", "mae": "min", "r2": "max"}  # noqa: RUF012
    headline = "mae"
    unit = "rows"

    def measure(self, sums: Sequence[float]) -> dict[str, float]:
        """Return mean squared error, mean absolute error, and R2 = 1 - squared errors / squared deviations from the mean.

        R2 is 0 if all targets are the same number, since there is no variance to explain.
        """
        squared, absolute, target, target_squared, count = sums
        deviations = target_squared - target**2 / count
        r2 = 1 - squared / deviations if deviations > 0 else 0.0
        return {"loss": squared / count, "mae": absolute / count, "r2": r2}
