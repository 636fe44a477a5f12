"""The interface of strategies: how processes and devices share variables, data, gradients and metrics."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from train_anywhere.training.keras.loop.pace import Pace

MakeDataset = Callable[[int, int], tf.data.Dataset]
"""A function from (replica, number of replicas) to that replica's batches."""


class Strategy:
    """The strategy of one process with one device; subclasses override what differs.

    Attributes:
        rank: number of this process; rank 0 writes files.
        processes: number of processes.
        replicas: devices that share the global batch, over all processes; each process has the same number.
        pace: measures how long this process works in a step without waiting for others.
    """

    def __init__(self, rank: int = 0, processes: int = 1, replicas: int = 1) -> None:
        self.rank, self.processes, self.replicas = rank, processes, replicas
        self.pace = Pace(processes)

    def scope(self) -> AbstractContextManager[object]:
        """Return the context in which variables must be created."""
        return nullcontext()

    def explain_lost_ranks(self) -> AbstractContextManager[object]:
        """Return a context that turns the error of a broken collective into a one-line message."""
        return nullcontext()

    def prepare(self, optimizer: keras.optimizers.Optimizer) -> None:
        """Stop an optimizer from summing gradients over the replicas after clipping; `dropin.gradients` averages them before."""
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        optimizer._all_reduce_sum_gradients = lambda gradients_and_variables: gradients_and_variables

    def dataset(self, make: MakeDataset) -> tf.data.Dataset:
        """Return the batches of this process."""
        return make(self.rank, self.replicas)

    def distribute(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        """Return batches for the replicas of this process in turns, as steps read them."""
        return batches

    def average(self, gradients: list[tf.Tensor], name: str = "gradients") -> list[tf.Tensor]:
        """Return the mean of the gradients over the replicas; called within the step, with a different name for each optimizer."""
        return gradients

    def average_variables(self, variables: list[keras.Variable]) -> None:
        """Assign the mean over the replicas to each variable; all processes call this between steps."""

    def sum(self, values: list[float]) -> list[float]:
        """Return the sums of a few numbers over the processes; all processes call this between steps."""
        return values

    def broadcast_variables(self, variables: list[keras.Variable]) -> None:
        """Assign rank 0's values to the variables of all processes; all processes call this between steps."""

    def broadcast_json(self, value: Any) -> Any:
        """Return rank 0's value, of JSON types; all processes call this between steps."""
        if self.processes == 1:
            return value
        text = json.dumps(value).encode() if self.rank == 0 else b""
        length = int(self.sum([float(len(text))])[0])
        with self.scope():
            numbers = np.frombuffer(text.ljust(length + -length % 8), np.int64)
            variable = keras.Variable(numbers, dtype="int64", trainable=False)
        self.broadcast_variables([variable])
        return json.loads(np.array(variable).tobytes())

    def local_values(self, variable: keras.Variable) -> list[tf.Variable]:
        """Return the variable's copy on each replica of this process."""
        return [variable.value]
