"""How processes and devices share variables, data, gradients and metrics."""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from train_anywhere.monitor.heartbeat import Heartbeat

EVERY_S = 0.1
"""Seconds between calls whose wait for the batch is read; the steps between count with the same wait."""


class Pace:
    """Times of the parts of a step. Only several processes wait for each other.

    On a GPU the operations are only queued at that time: the times then reveal a rank with slow data or a slow program, but not a slow GPU,
    nor the wait for other ranks (see `monitor/heartbeat.py`).
    """

    def __init__(self, processes: int) -> None:
        self._began = self._asked = self._read_at = 0.0
        self._unread = 0
        self._measures = self._next = True
        self._batch = _Moment(first=processes == 1)
        self._there = _Moment() if processes > 1 else None
        self._average = _Moment() if self._there and not tf.config.list_physical_devices("GPU") else None

    def start(self) -> None:
        """Note the time at which the work for the next call starts."""
        self._began = time.time()  # the clock of `tf.timestamp`

    def ask(self) -> None:
        """Note the time of the next call, from which on its first step waits for its batch."""
        if self._next or self._there:
            self._asked, self._next = time.time(), False

    def turn_off(self) -> None:
        """Take no more time stamps."""
        self._measures = False

    def mark_batch(self, batch: Any) -> None:
        """Mark within the step that the batch, of one replica or several, is ready."""
        if self._measures:
            replicas = tf.distribute.get_strategy().experimental_local_results(batch)
            self._batch.take(tf.nest.flatten(replicas, expand_composites=True))

    def mark_gradients(self, gradients: Sequence[Any]) -> None:
        """Mark within the step that the gradients are ready, before they are averaged."""
        if self._there and self._measures:
            self._there.take(gradients)

    def mark_average(self, gradients: Sequence[Any]) -> None:
        """Mark within the step that the gradients are averaged."""
        if self._average and self._measures:
            self._average.take(gradients)

    def seconds(self, heartbeat: Heartbeat, steps: int = 1) -> float:
        """Return the seconds of this rank's own work in a call of so many steps. 0 for a single process."""
        now = time.time()
        self._unread += steps
        if now - self._read_at >= EVERY_S:
            heartbeat.waited_for_data(self._wait_for_data(heartbeat.trained), self._unread)
            self._unread, self._read_at, self._next = 0, now, True
        if not self._there:
            return 0.0
        there = self._there.read()
        if self._average and heartbeat.efficiency.due(heartbeat.trained):
            waited = max(0.0, self._average.read() - there)
            heartbeat.efficiency.add_step(now - self._began - self._wait_for_data(heartbeat.trained), waited)
        return max(0.0, there - self._began)

    def _wait_for_data(self, trained: int) -> float:
        """Return the wait for the batch. 0 for the first call, which is compiled before."""
        waited = self._batch.read() - self._asked
        return max(0.0, waited) if trained else 0.0


class _Moment:
    """The Unix time at which values of the newest step, of the first optimizer, were ready.

    Args:
        first: keep the time of the first step after the last `read`: a call of several steps waits for data before the others, too.
    """

    def __init__(self, first: bool = False) -> None:
        self._graph: Any = None
        self._first = first
        with tf.device("CPU:0"):
            self._moment = tf.Variable(0.0, dtype=tf.float64, trainable=False)

    def take(self, values: Sequence[Any]) -> None:
        """Store within the step the time at which these values are ready."""
        graph = tf.compat.v1.get_default_graph()
        if tf.inside_function() and graph is self._graph:
            return
        self._graph = graph
        there = [v.values if isinstance(v, tf.IndexedSlices) else v for v in values if v is not None]
        with tf.control_dependencies(there), tf.device("CPU:0"):
            now, before = tf.timestamp(), self._moment
            before.assign(tf.where(before > 0.0, before, now) if self._first else now)

    def read(self) -> float:
        """Return the stored time of a finished step."""
        moment = float(self._moment.numpy())
        if self._first:
            self._moment.assign(0.0)
        return moment


MakeDataset = Callable[[int, int], tf.data.Dataset]
"""A function from (replica, number of replicas) to that replica's batches."""


class Strategy:
    """The strategy of one process with one device, and base of the others.

    Attributes:
        rank: number of this process; rank 0 writes files.
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

    def dataset(self, make: MakeDataset) -> tf.data.Dataset:
        """Return the batches of this process."""
        return make(self.rank, self.replicas)

    def distribute(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        """Return batches for the replicas of this process in turns, as steps read them."""
        return batches

    def average(self, gradients: list[tf.Tensor], name: str = "gradients") -> list[tf.Tensor]:
        """Return the mean of the gradients over the replicas, within the step."""
        return gradients

    def average_variables(self, variables: list[keras.Variable]) -> None:
        """Assign the mean over the replicas to each variable. All processes call this."""

    def sum(self, values: list[float]) -> list[float]:
        """Return the sums of a few numbers over the processes. All of them call this."""
        return values

    def gather(self, numbers: Sequence[float], most: int) -> list[list[float]]:
        """Return up to `most` numbers of each process, integers below 2**53 exactly. All processes call this."""
        slots = np.zeros((self.processes, most + 1))
        slots[self.rank, : len(numbers) + 1] = [len(numbers), *numbers]
        rows = np.reshape(self.sum(slots.ravel().tolist()), slots.shape)
        return [row[1 : int(row[0]) + 1].tolist() for row in rows]

    def broadcast_variables(self, variables: list[keras.Variable]) -> None:
        """Assign rank 0's values to the variables. All processes call this."""

    def broadcast_json(self, value: Any) -> Any:
        """Return rank 0's value, of JSON types. All processes call this."""
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

    def snapshot(self, variables: Iterable[keras.Variable]) -> Callable[[], None]:
        """Return a function that assigns the current values again, those of each replica of this process."""
        copies = [copy for variable in variables for copy in self.local_values(variable)]
        values = [np.array(copy) for copy in copies]

        def restore() -> None:
            for copy, value in zip(copies, values, strict=True):
                copy.assign(value)

        return restore
