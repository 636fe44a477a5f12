"""The training and the test step, as a `keras.Model` that `fit` and `evaluate` use."""

from collections.abc import Callable, Iterator

import keras
import tensorflow as tf

from src.training.keras.strategies.base import Strategy

Batch = tuple[tf.Tensor, tf.Tensor, tf.Tensor]
"""Images float32 [b, H, W, C], labels int64 [b], weights float32 [b]; with accumulation [k, b, ...] each."""

StepFunction = Callable[[Iterator[Batch]], dict[str, float]]
"""Trains or tests on the next batch."""


class Tally:
    """Sums over this process' samples since they were last taken, on the device: taking them waits for it.

    Each replica has its own, so counting needs no communication.
    """

    def __init__(self) -> None:
        self.sums = tf.Variable(  # loss, correct answers, samples; float64 counts exactly
            tf.zeros(3, tf.float64),
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
        self.distribution = tf.distribute.get_strategy()

    def add(self, losses: tf.Tensor, labels: tf.Tensor, logits: tf.Tensor, weights: tf.Tensor) -> None:
        """Count a batch: losses [b], labels [b], logits [b, classes]; rows of weight 0 are padding."""
        real = tf.cast(weights > 0, tf.float64)
        right = tf.cast(tf.argmax(logits, axis=-1) == labels, tf.float64)
        counts = [
            tf.reduce_sum(real * tf.cast(losses, tf.float64)),
            tf.reduce_sum(real * right),
            tf.reduce_sum(real),
        ]
        self.sums.assign_add(tf.stack(counts))

    def take(self) -> list[float]:
        """Sum of the losses, number of right answers, number of samples; the sums then begin again at 0."""
        replicas = self.distribution.experimental_local_results(self.sums)
        taken = sum(replica.numpy() for replica in replicas)
        for replica in replicas:
            replica.assign(tf.zeros(3, tf.float64))
        return [float(v) for v in taken]


class Classifier(keras.Model):
    """A model with what training needs: weighted cross-entropy, gradient accumulation, exact metrics.

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
        self.tally = Tally()

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        """None of Keras' own: the tally replaces them, so that no step waits for the device."""
        return []

    def train_step(self, data: Batch) -> None:
        """One optimizer step; gradients are averaged before they are clipped or checked for overflow."""
        gradients = self.gradients(*data) if self.accumulate == 1 else self.accumulated(*data)
        self.optimizer.apply(self.strategy.average(gradients), self.trainable_variables)

    def test_step(self, data: Batch) -> None:
        """Count one batch."""
        image, label, weight = data
        logits = self(image, training=False)
        self.tally.add(cross_entropy(label, logits), label, logits, weight)

    def gradients(self, image: tf.Tensor, label: tf.Tensor, weight: tf.Tensor) -> list[tf.Tensor]:
        """The gradients of one batch's share of the loss."""
        with tf.GradientTape() as tape:
            logits = self(image, training=True)
            losses = cross_entropy(label, logits)
            loss = self.optimizer.scale_loss(tf.reduce_mean(weight * losses) / self.accumulate)
        self.tally.add(losses, label, logits, weight)
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
        """All is built; Keras 3.15 would fetch a batch to find out, and try to reduce it over the workers."""

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
            return {}  # no logs: whoever wants numbers reads the tally

        return function


def cross_entropy(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Cross-entropy of each row, float32 [b]; labels are class numbers [b], logits [b, classes]."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
