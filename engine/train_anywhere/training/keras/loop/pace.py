"""Where the time of a step goes: waiting for the batch, the rank's own work until its gradients are there, waiting for their average.

A step is one compiled function, so the moments are taken within it, by operations that come after the batch, the gradients and the average.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from train_anywhere.monitor.heartbeat import own as heartbeat

EVERY_S = 0.1
"""Seconds between two steps whose wait for the batch is read: it stands for those between them."""


class Pace:
    """Measures it; what concerns other ranks, in processes that are one of several.

    A GPU is only given its work by then: there it tells a rank whose data or program is slow, not a slow GPU, and nothing of the wait
    for others (see `monitor/efficiency.py`).
    """

    def __init__(self, processes: int) -> None:
        self._began = self._asked = self._looked = self._own = self._agreeing = 0.0
        self._unread = 0
        self._batch = _Moment()
        self._there: _Moment | None = None
        self._average: _Moment | None = None
        if processes > 1:
            self._there = _Moment()
            self._average = None if tf.config.list_physical_devices("GPU") else _Moment()

    def begin(self) -> None:
        """The last call is done."""
        self._began = time.time()  # the clock of `tf.timestamp`
        self._agreeing = 0.0

    @contextmanager
    def agreement(self) -> Iterator[None]:
        """Count the time within as waiting for other ranks: all of them exchange numbers before the call."""
        start = time.monotonic()
        try:
            yield
        finally:
            self._agreeing += time.monotonic() - start

    def ask(self) -> None:
        """The next call comes: from here on its batch is waited for."""
        self._asked = time.time()

    def fetched(self, batch: Any) -> None:
        """Within the step: the batch is there, of one replica or of several."""
        replicas = tf.distribute.get_strategy().experimental_local_results(batch)
        self._batch.take(tf.nest.flatten(replicas, expand_composites=True))

    def computed(self, gradients: Sequence[Any]) -> None:
        """Within the step: these are there, and not yet averaged."""
        if self._there:
            self._there.take(gradients)

    def averaged(self, gradients: Sequence[Any]) -> None:
        """Within the step: the averages are there."""
        if self._average:
            self._average.take(gradients)

    def seconds(self, steps: int = 1) -> float:
        """A call is done: how long this rank worked by itself; 0 for a single process.

        Args:
            steps: of the call. The moments are those of the last one, which says nothing of several: the last single one stands for them.
        """
        now = time.time()
        self._unread += steps
        if steps > 1:
            return self._own * steps
        if now - self._looked >= EVERY_S:
            heartbeat.waited_for_data(self._wait_for_data(), self._unread)
            self._unread, self._looked = 0, now
        if not self._there:
            return 0.0
        there = self._there.read()
        if self._average and heartbeat.efficiency.due(heartbeat.trained):
            waited = max(0.0, self._average.read() - there) + self._agreeing
            heartbeat.efficiency.measured(now - self._began - self._wait_for_data(), waited)
        self._own = max(0.0, there - self._began - self._agreeing)
        return self._own

    def _wait_for_data(self) -> float:
        """Not of the first step, which is compiled before it asks for its batch."""
        return max(0.0, self._batch.read() - self._asked) if heartbeat.trained else 0.0


class _Moment:
    """When something was there in the newest step, in unix seconds. Of several optimizers the first counts: it waits for no other rank."""

    def __init__(self) -> None:
        self._graph: Any = None
        with tf.device("CPU:0"):
            self._moment = tf.Variable(0.0, dtype=tf.float64, trainable=False)

    def take(self, values: Sequence[Any]) -> None:
        """Within the step: when these are there."""
        graph = tf.compat.v1.get_default_graph()
        if tf.inside_function() and graph is self._graph:
            return
        self._graph = graph
        there = [v.values if isinstance(v, tf.IndexedSlices) else v for v in values]
        with tf.control_dependencies(there), tf.device("CPU:0"):
            self._moment.assign(tf.timestamp())

    def read(self) -> float:
        """The step is done."""
        return float(self._moment.numpy())
