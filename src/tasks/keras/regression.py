"""Regression in TensorFlow."""

import keras
import tensorflow as tf

from src.tasks import regression


class Regression(regression.Regression):
    """Batches are {"columns": float32 [b, ...], "targets": float32 [b, outputs]}."""

    def step(
        self, network: keras.Model, batch: dict[str, tf.Tensor], weight: tf.Tensor, training: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the squared error of each row, float32 [b], and the sums of the batch, float64 [5].

        With several outputs, the errors of a row are means over them.
        The network maps columns float32 [b, ...] to predictions [b, outputs]. Rows with a `weight` (float32 [b]) of 0 are padding.
        """
        targets = batch["targets"]
        error = tf.cast(network(batch["columns"], training=training), tf.float32) - targets
        losses = tf.reduce_mean(error**2, axis=-1)
        real = tf.cast(weight > 0, tf.float64)  # rows of weight 0 are padding
        columns = [
            losses,
            tf.reduce_mean(tf.abs(error), axis=-1),
            tf.reduce_mean(targets, axis=-1),
            tf.reduce_mean(targets**2, axis=-1),
            tf.ones_like(losses),
        ]
        return losses, tf.stack([tf.reduce_sum(real * tf.cast(c, tf.float64)) for c in columns])
