"""The training and the test step, as a `keras.Model` that `fit` and `evaluate` use."""

from collections.abc import Callable, Iterator

import keras
import tensorflow as tf

from src.tasks import SUMS
from src.tasks.keras import classification as task
from src.training.keras.strategies.base import Strategy

Batch = tuple[tf.Tensor, tf.Tensor, tf.Tensor]
"""Images float32 [b, H, W, C], labels int64 [b], weights float32 [b]; with accumulation [k, b, ...] each."""

StepFunction = Callable[[Iterator[Batch]], dict[str, float]]
"""Trains or tests on the next batch."""


class RunningSums:
    """Sums over batches by `src.tasks.SUMS`, kept on the device: adding does not wait for it, taking them does.

    Each replica has its own, so counting needs no communication.
    """

    def __init__(self) -> None:
        self.sums = tf.Variable(  # float64 counts exactly
            tf.zeros(len(SUMS), tf.float64),
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
        self.distribution = tf.distribute.get_strategy()

    def add(self, sums: tf.Tensor) -> None:
        """Add the sums of a batch, float64 [len(SUMS)]."""
        self.sums.assign_add(sums)

    def take(self) -> list[float]:
        """The sums of this process since the last call."""
        replicas = self.distribution.experimental_local_results(self.sums)
        taken = sum(replica.numpy() for replica in replicas)
        for replica in replicas:
            replica.assign(tf.zeros(len(SUMS), tf.float64))
        return [float(v) for v in taken]


class Classifier(keras.Model):
    """Trains and tests a network: weighted loss, gradient accumulation, exact metrics; the task says what the loss is.

    The loss is the mean over rows of weight * cross-entropy; averaged over ranks, that of all real samples.

    Args:
        model: images to logits.
        strategy: averages the gradients over the ranks.
        accumulate: batches per optimizer step; above 1, each step takes a stack of them.
    """

    def __init__(self, model: keras.Model, strategy: Strategy, accumulate: int) -> None:
        super().__init__(model.input, model.output, name=model.name)
        self.train_function: StepFunction | None
        self.test_function: StepFunction | None
        self.strategy, self.accumulate = strategy, accumulate
        self.sums = RunningSums()

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        """None of Keras' own: `RunningSums` replaces them, so that no step waits for the device."""
        return []

    def train_step(self, data: Batch) -> None:
        """One optimizer step; gradients are averaged before they are clipped or checked for overflow."""
        gradients = self.gradients(*data) if self.accumulate == 1 else self.accumulated(*data)
        self.optimizer.apply(self.strategy.average(gradients), self.trainable_variables)

    def test_step(self, data: Batch) -> None:
        """Count one batch."""
        image, label, weight = data
        logits = self(image, training=False)
        self.sums.add(task.sums(task.cross_entropy(logits, label), logits, label, weight))

    def gradients(self, image: tf.Tensor, label: tf.Tensor, weight: tf.Tensor) -> list[tf.Tensor]:
        """The gradients of one batch's share of the loss."""
        with tf.GradientTape() as tape:
            logits = self(image, training=True)
            losses = task.cross_entropy(logits, label)
            loss = self.optimizer.scale_loss(tf.reduce_mean(weight * losses) / self.accumulate)
        self.sums.add(task.sums(losses, logits, label, weight))
        return tape.gradient(loss, self.trainable_variables)

    def accumulated(self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> list[tf.Tensor]:
        """The summed gradients of a stack of batches, one in memory at a time and nothing on the wire."""

        def more(number: tf.Tensor, sums: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
            fresh = self.gradients(images[number], labels[number], weights[number])
            return number + 1, [s + tf.convert_to_tensor(g) for s, g in zip(sums, fresh, strict=True)]

        first = [tf.convert_to_tensor(g) for g in self.gradients(images[0], labels[0], weights[0])]
        return tf.while_loop(lambda number, _: number < self.accumulate, more, (tf.constant(1), first))[1]

    def moving_statistics(self) -> list[keras.Variable]:
        """What each replica gathers from its own rows: means and variances of batch normalisation."""
        return [v for v in self.non_trainable_variables if v.dtype == "float32"]

    def _maybe_symbolic_build(self, iterator: object = None, data_batch: object = None) -> None:
        """Everything is built; Keras 3.15 would fetch a batch to find out, and try to reduce it over the workers."""

    def make_train_function(self, force: bool = False) -> None:
        """What `fit` calls for each step; Keras' own reads all metrics each time, over all replicas."""
        if self.train_function is None or force:
            self.train_function = self._function(self.train_step)

    def make_test_function(self, force: bool = False) -> None:
        """What `evaluate` calls for each step."""
        if self.test_function is None or force:
            self.test_function = self._function(self.test_step)

    def _function(self, step: Callable[[Batch], None]) -> StepFunction:
        @tf.function(autograph=False)
        def run(iterator: Iterator[Batch]) -> None:
            self.distribute_strategy.run(step, args=(next(iterator),))

        def function(iterator: Iterator[Batch]) -> dict[str, float]:
            run(iterator)
            return {}  # no logs: numbers come from `RunningSums`

        return function
