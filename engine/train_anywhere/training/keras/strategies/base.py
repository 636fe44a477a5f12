"""What a strategy does: how processes and devices share variables, data, gradients and metrics."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from train_anywhere.training.keras.loop.pace import Pace

MakeDataset = Callable[[int, int], tf.data.Dataset]
"""(replica, number of replicas) to that replica's batches."""


class Strategy:
    """One process, one device; the others change what differs.

    Attributes:
        rank, processes: number of this process, and how many there are; rank 0 writes.
        replicas: devices that share the global batch, over all processes; each process has the same number.
        pace: measures how long this process works by itself in a step.
    """

    def __init__(self, rank: int = 0, processes: int = 1, replicas: int = 1) -> None:
        self.rank, self.processes, self.replicas = rank, processes, replicas
        self.pace = Pace(processes)

    def scope(self) -> AbstractContextManager[object]:
        """Variables must be created within."""
        return nullcontext()

    def explaining_lost_ranks(self) -> AbstractContextManager[object]:
        """Within, the error of a broken collective is one sentence."""
        return nullcontext()

    def prepare(self, optimizer: keras.optimizers.Optimizer) -> None:
        """Keep an optimizer from summing the gradients over the replicas, which Keras' own do after clipping: they are averaged before,
        see `train_anywhere.training.keras.dropin.gradients`.
        """
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        optimizer._all_reduce_sum_gradients = lambda gradients_and_variables: gradients_and_variables

    def dataset(self, make: MakeDataset) -> tf.data.Dataset:
        """The batches of this process, for `fit` and `evaluate`."""
        return make(self.rank, self.replicas)

    def average(self, gradients: list[tf.Tensor], name: str = "gradients") -> list[tf.Tensor]:
        """The mean over replicas; called within the step, under a name of its own by each optimizer."""
        return gradients

    def average_variables(self, variables: list[keras.Variable]) -> None:
        """Give all replicas the mean of their values; called between steps, by all processes."""

    def sum(self, values: list[float]) -> list[float]:
        """The sums over processes of a few numbers; called between steps, by all processes."""
        return values

    def from_rank_0(self, variables: list[keras.Variable]) -> None:
        """Give all processes rank 0's values; called between steps, by all processes."""

    def shared(self, value: Any) -> Any:
        """Return rank 0's value, of JSON types; called between steps, by all processes."""
        if self.processes == 1:
            return value
        text = json.dumps(value).encode() if self.rank == 0 else b""
        length = int(self.sum([float(len(text))])[0])
        with self.scope():
            numbers = np.frombuffer(text.ljust(length + -length % 8), np.int64)
            variable = keras.Variable(numbers, dtype="int64", trainable=False)
        self.from_rank_0([variable])
        return json.loads(np.array(variable).tobytes())

    def local_values(self, variable: keras.Variable) -> list[tf.Variable]:
        """The variable as each replica of this process has it."""
        return [variable.value]
