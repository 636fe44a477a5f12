"""A task as version 0.1 had them: regression with `step`, sums and `prepare`."""

from collections.abc import Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from train_anywhere.tasks import Task


class Regression(Task):
    """Regression on columns that `prepare` renames."""

    sums = ("squared", "absolute", "count")
    metrics = {"loss": "min", "mae": "min"}  # noqa: RUF012
    headline = "mae"
    unit = "rows"

    def measure(self, sums: Sequence[float]) -> dict[str, float]:
        """Return the means."""
        squared, absolute, count = sums
        return {"loss": squared / count, "mae": absolute / count}

    def prepare(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the batch with other names."""
        return {"x": batch["columns"], "y": batch["targets"]}

    def step(
        self, network: keras.Model, batch: dict[str, tf.Tensor], weight: tf.Tensor, training: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the loss of each row, and the sums of the batch."""
        error = network(batch["x"], training=training) - batch["y"]
        losses, real = tf.reduce_mean(error**2, -1), tf.cast(weight > 0, tf.float64)
        columns = [losses, tf.reduce_mean(tf.abs(error), -1), tf.ones_like(losses)]
        return losses, tf.stack([tf.reduce_sum(real * tf.cast(c, tf.float64)) for c in columns])
