"""Measure the parts of a step: waiting for the batch, computing the gradients, waiting for their average over the ranks.

A step is one compiled function, so timestamps are taken by operations in it that depend on the batch, the gradients and the average.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from train_anywhere.monitor.heartbeat import Heartbeat

EVERY_S = 0.1
"""Seconds between steps whose wait for the batch is read; the steps between count with the same wait."""


class Pace:
    """Times of the parts of a step; those that depend on other ranks are measured only with several processes.

    On a GPU the operations are only queued at that time: the times then reveal a rank with slow data or a slow program, but not a slow GPU,
    nor the wait for other ranks (see `monitor/heartbeat.py`).
    """

    def __init__(self, processes: int) -> None:
        self._began = self._asked = self._read_at = self._own = self._agreeing = 0.0
        self._unread = 0
        self.measures = True
        self._batch = _Moment()
        self._there: _Moment | None = None
        self._average: _Moment | None = None
        if processes > 1:
            self._there = _Moment()
            self._average = None if tf.config.list_physical_devices("GPU") else _Moment()

    def start(self) -> None:
        """Note the time at which the work for the next call starts."""
        self._began = time.time()  # the clock of `tf.timestamp`
        self._agreeing = 0.0

    @contextmanager
    def agreement(self) -> Iterator[None]:
        """Count the time of the block as waiting for other ranks, with which numbers are exchanged before the call."""
        start = time.monotonic()
        try:
            yield
        finally:
            self._agreeing += time.monotonic() - start

    def ask(self) -> None:
        """Note the time of the next call, from which on the step waits for its batch."""
        self._asked = time.time()

    def mark_batch(self, batch: Any) -> None:
        """Mark that the batch, of one replica or several, is ready; called within the step."""
        if not self.measures:
            return
        replicas = tf.distribute.get_strategy().experimental_local_results(batch)
        self._batch.take(tf.nest.flatten(replicas, expand_composites=True))

    def mark_gradients(self, gradients: Sequence[Any]) -> None:
        """Mark that the gradients are computed, and not yet averaged; called within the step."""
        if self._there and self.measures:
            self._there.take(gradients)

    def mark_average(self, gradients: Sequence[Any]) -> None:
        """Mark that the gradients are averaged; called within the step."""
        if self._average and self.measures:
            self._average.take(gradients)

    def seconds(self, heartbeat: Heartbeat, steps: int = 1) -> float:
        """Return how many seconds this rank worked in the finished call without waiting for others; 0 for a single process.

        A call of several `steps` has the timestamps of its last step only, so the work of the last single step is used for each.
        """
        now = time.time()
        self._unread += steps
        if steps > 1:
            return self._own * steps
        if now - self._read_at >= EVERY_S:
            heartbeat.waited_for_data(self._wait_for_data(heartbeat.trained), self._unread)
            self._unread, self._read_at = 0, now
        if not self._there:
            return 0.0
        there = self._there.read()
        if self._average and heartbeat.efficiency.due(heartbeat.trained):
            waited = max(0.0, self._average.read() - there) + self._agreeing
            heartbeat.efficiency.add_step(now - self._began - self._wait_for_data(heartbeat.trained), waited)
        self._own = max(0.0, there - self._began - self._agreeing)
        return self._own

    def _wait_for_data(self, trained: int) -> float:
        """Return the wait for the batch; 0 for the first step, which is compiled before it fetches its batch."""
        return max(0.0, self._batch.read() - self._asked) if trained else 0.0


class _Moment:
    """The Unix time at which values were ready in the newest step. Of several optimizers the first counts: it waits for no other rank."""

    def __init__(self) -> None:
        self._graph: Any = None
        with tf.device("CPU:0"):
            self._moment = tf.Variable(0.0, dtype=tf.float64, trainable=False)

    def take(self, values: Sequence[Any]) -> None:
        """Store the time at which these values are ready; called within the step."""
        graph = tf.compat.v1.get_default_graph()
        if tf.inside_function() and graph is self._graph:
            return
        self._graph = graph
        there = [v.values if isinstance(v, tf.IndexedSlices) else v for v in values]
        with tf.control_dependencies(there), tf.device("CPU:0"):
            self._moment.assign(tf.timestamp())

    def read(self) -> float:
        """Return the stored time; called after the step."""
        return float(self._moment.numpy())
