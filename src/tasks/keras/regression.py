"""Regression with TensorFlow: numbers to predict for each row."""

import keras
import tensorflow as tf

from src.tasks import regression


class Regression(regression.Regression):
    """Batches are {"columns": float32 [b, ...], "targets": float32 [b, k]}; the network gives [b, k]."""

    def step(
        self, network: keras.Model, batch: dict[str, tf.Tensor], weight: tf.Tensor, training: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The squared error of each row, float32 [b], and the sums of the batch, float64 [len(self.sums)].

        Of several numbers to predict, errors are means over them.
        """
        targets = batch["targets"]
        error = tf.cast(network(batch["columns"], training=training), tf.float32) - targets
        losses = tf.reduce_mean(error**2, axis=-1)
        real = tf.cast(weight > 0, tf.float64)  # others are padding, and count nowhere
        columns = [
            losses,
            tf.reduce_mean(tf.abs(error), axis=-1),
            tf.reduce_mean(targets, axis=-1),
            tf.reduce_mean(targets**2, axis=-1),
            tf.ones_like(losses),
        ]
        return losses, tf.stack([tf.reduce_sum(real * tf.cast(c, tf.float64)) for c in columns])
