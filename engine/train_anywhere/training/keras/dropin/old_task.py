"""Tasks of version 0.1, with `step` and sums, as Keras models. Only in version 0.2."""

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from train_anywhere.data.dataset import Arrays, DataSet
from train_anywhere.tasks import Task


class Sums(keras.metrics.Metric):
    """The sums of a task over batches, and the metrics that it computes from them."""

    def __init__(self, task: Task) -> None:
        super().__init__(name="sums", dtype="float64")
        self.task = task
        self.sums = self.add_variable((len(task.sums),), "zeros", name="sums")

    def update_state(self, sums: tf.Tensor) -> None:
        """Add the sums of a batch."""
        self.sums.assign_add(tf.cast(sums, tf.float64))

    def result(self) -> dict[str, tf.Tensor]:
        """Return the metrics by name."""
        names = [*self.task.metrics]

        def measure(sums: np.ndarray) -> np.ndarray:
            values = self.task.measure(sums.tolist()) if sums.any() else {}
            return np.array([values.get(name, np.nan) for name in names])

        values = tf.numpy_function(measure, [self.sums], tf.float64)
        return {name: tf.reshape(values[n], ()) for n, name in enumerate(names)}


class OldTask(keras.Model):
    """A model that calls `step(network, batch, weight, training)` of a task, and maybe `generate`; rows have equal weights."""

    def __init__(self, task: Task, network: keras.Model, optimizer: Any) -> None:
        super().__init__(name="task", autocast=False)
        self.task, self.network, self.sums = task, network, Sums(task)
        if hasattr(task, "generate"):
            self.generate = lambda *arguments: task.generate(network, *arguments)
        self.compile(optimizer=optimizer)

    def train_step(self, data: Any) -> Any:
        """Make one optimizer step on a batch that is passed on as a whole."""
        return super().train_step((data,))

    def test_step(self, data: Any) -> Any:
        """Count a batch."""
        return super().test_step((data,))

    def predict_step(self, data: Any) -> Any:
        """Return what the network returns for a batch."""
        return super().predict_step((data,))

    def call(self, batch: Any, training: bool = False) -> Any:
        """Call `step`, and return what it gets from the network."""
        outputs: list[Any] = []

        def network(*inputs: Any, **named: Any) -> Any:
            outputs.append(self.network(*inputs, **named))
            return outputs[-1]

        weight, step = tf.ones(tf.shape(tf.nest.flatten(batch)[0])[:1]), getattr(self.task, "step")  # noqa: B009
        self._last = step(network, batch, weight, training)
        return outputs[-1]

    def compute_loss(self, *_: Any, **named: Any) -> tf.Tensor:
        """Return the loss of the last call, and add its sums."""
        losses, sums = self._last
        self.sums.update_state(sums)
        return tf.reduce_mean(losses) + sum(self.losses)

    def prepare(self, splits: dict[str, Any]) -> dict[str, Any]:
        """Return the splits with the changes of `prepare` of the task, if it has one."""
        if not hasattr(self.task, "prepare"):
            return splits
        return {name: rows and Prepared(rows, self.task) for name, rows in splits.items()}


@dataclass(frozen=True)
class Prepared:
    """A data set whose batches `prepare` of a task changes."""

    dataset: DataSet
    task: Any

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dataset, name)

    def read(self, indices: np.ndarray, epoch: int, train: bool) -> Arrays:
        """Return the changed rows."""
        prepared: Arrays = self.task.prepare(self.dataset.read(indices, epoch, train))
        return prepared
