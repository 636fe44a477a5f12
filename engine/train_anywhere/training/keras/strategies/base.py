"""How processes and devices share variables, data, gradients and metrics."""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

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
        self._unread, self._next, self._several = 0, True, processes > 1
        marked = {"batch", *(("gradients",) if self._several else ())}
        if self._several and not tf.config.list_physical_devices("GPU"):
            marked.add("average")
        with tf.device("CPU:0"):
            self._moments = {n: tf.Variable(0.0, dtype=tf.float64, trainable=False) for n in marked}
        self._graphs = dict[str, Any]()

    def start(self) -> None:
        """Note the time at which the work for the next call starts."""
        self._began = time.time()  # the clock of `tf.timestamp`

    def ask(self) -> None:
        """Note the time of the next call, from which on its first step waits for its batch."""
        if self._next or self._several:
            self._asked, self._next = time.time(), False

    def turn_off(self) -> None:
        """Take no more time stamps."""
        self._moments = {}

    def mark(self, name: Literal["batch", "gradients", "average"], values: Any) -> None:
        """Store within the step the time at which these values are ready; those of the first optimizer."""
        graph, moment = tf.compat.v1.get_default_graph(), self._moments.get(name)
        if moment is None or (tf.inside_function() and graph is self._graphs.get(name)):
            return
        self._graphs[name] = graph
        ready = [v for v in tf.nest.flatten(values, expand_composites=True) if v is not None]
        with tf.control_dependencies(ready), tf.device("CPU:0"):
            now = tf.timestamp()
            # a call of several steps waits for data before the others, too: the first one since the last reading counts
            first = name == "batch" and not self._several
            moment.assign(tf.where(moment > 0.0, moment, now) if first else now)

    def seconds(self, heartbeat: Heartbeat, steps: int = 1) -> float:
        """Return the seconds of this rank's own work in a call of so many steps. 0 for a single process."""
        now = time.time()
        self._unread += steps
        if now - self._read_at >= EVERY_S:
            heartbeat.waited_for_data(self._wait_for_data(heartbeat.trained), self._unread)
            self._unread, self._read_at, self._next = 0, now, True
        if not self._several:
            return 0.0
        there = self._read("gradients")
        if "average" in self._moments and heartbeat.efficiency.due(heartbeat.trained):
            waited = max(0.0, self._read("average") - there)
            heartbeat.efficiency.add_step(now - self._began - self._wait_for_data(heartbeat.trained), waited)
        return max(0.0, there - self._began)

    def _wait_for_data(self, trained: int) -> float:
        """Return the wait for the batch. 0 for the first call, which is compiled before."""
        waited = self._read("batch") - self._asked
        if not self._several and self._moments:
            self._moments["batch"].assign(0.0)
        return max(0.0, waited) if trained else 0.0

    def _read(self, name: str) -> float:
        """Return the Unix time of a finished step, 0 without time stamps."""
        return float(self._moments[name].numpy()) if self._moments else 0.0


class Strategy:
    """The strategy of one process with one device, and base of the others.

    Attributes:
        replicas: devices that share the global batch, over all processes; each process has `local` of them.
        pace: measures how long this process works in a step without waiting for others.
    """

    def __init__(self, rank: int = 0, processes: int = 1, replicas: int = 1) -> None:
        self.rank, self.processes, self.replicas = rank, processes, replicas
        self.local = replicas // processes
        self.pace = Pace(processes)

    def scope(self) -> AbstractContextManager[object]:
        """Return the context in which variables must be created."""
        return nullcontext()

    def explain_lost_ranks(self) -> AbstractContextManager[object]:
        """Return a context that turns the error of a broken collective into a one-line message."""
        return nullcontext()

    def dataset(self, make: Callable[[int, int], tf.data.Dataset]) -> tf.data.Dataset:
        """Return the batches of this process. `make` returns those of a replica, of a number of replicas."""
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

    def sum_arrays(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the sums of arrays over the processes, as float64 in their shapes. All processes call this."""
        numbers = [number for array in arrays for number in array.ravel().tolist()]
        parts = np.split(np.array(self.sum(numbers)), np.cumsum([array.size for array in arrays]))
        return [part.reshape(array.shape) for part, array in zip(parts, arrays, strict=False)]

    def gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """Return the numbers of each process, integers below 2**53 exactly. All call this with equally many."""
        slots = np.zeros((self.processes, len(numbers)))
        slots[self.rank] = numbers
        return [row.tolist() for row in self.sum_arrays([slots])[0]]

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
