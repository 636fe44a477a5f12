r"""A callback and a metric of your own.

    python src/train.py framework=keras task._target_=examples.keras_callback_metric.make_model \
        data._target_=examples.keras_model.open_data \
        callbacks.weights._target_=examples.keras_callback_metric.WeightNorm

`callbacks.weights` is a name that you choose; arguments of the callback are keys: `callbacks.weights.every_n_epochs=2`.
"""

import keras
import tensorflow as tf

from examples import keras_model


class TopTwo(keras.metrics.Metric):
    """The fraction of rows whose label is among the two most probable classes."""

    def __init__(self) -> None:
        super().__init__(name="top_two")
        self.right = self.add_variable((), "zeros", name="right")
        self.rows = self.add_variable((), "zeros", name="rows")

    def update_state(
        self, labels: tf.Tensor, logits: tf.Tensor, sample_weight: tf.Tensor | None = None
    ) -> None:
        """Count the rows of a batch, with labels [b] and logits [b, classes], and weights [b] if rows have some."""
        right = tf.cast(tf.math.in_top_k(tf.reshape(labels, [-1]), logits, k=2), tf.float32)
        weight = tf.ones_like(right) if sample_weight is None else tf.reshape(sample_weight, [-1])
        self.right.assign_add(tf.reduce_sum(right * weight))
        self.rows.assign_add(tf.reduce_sum(weight))

    def result(self) -> tf.Tensor:
        """Return the fraction of the rows since the last reset."""
        return self.right / self.rows


class WeightNorm(keras.callbacks.Callback):
    """Adds the norm of all weights to the logs of an epoch: it is logged as train/weight_norm."""

    def __init__(self, every_n_epochs: int = 1) -> None:
        super().__init__()
        self.every_n_epochs = every_n_epochs

    def on_epoch_end(self, epoch: int, logs: dict) -> None:
        """Add it."""
        if epoch % self.every_n_epochs == 0:
            weights = [variable.value for variable in self.model.trainable_weights]
            logs["weight_norm"] = float(tf.linalg.global_norm(weights))


def make_model() -> keras.Model:
    """Return the network of keras_model.py, compiled with the metric."""
    model = keras_model.make_model()
    model.compile(optimizer=None, loss=model.loss, metrics=["accuracy", TopTwo()])
    return model
