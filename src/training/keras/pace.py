"""How long a rank works by itself from one step to the next: until its gradients are there, to be averaged with those of others.

A step is one compiled function, so the moment is taken within it, by an operation that comes after the gradients.
"""

import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf


class Pace:
    """Measures it, in processes that are one of several.

    A GPU is only given its work by then: there it tells a rank whose data or program is slow, not a slow GPU.
    """

    def __init__(self, processes: int) -> None:
        self._began = 0.0
        self._graph: Any = None
        self._moment: tf.Variable | None = None
        if processes > 1:
            with tf.device("CPU:0"):
                self._moment = tf.Variable(0.0, dtype=tf.float64, trainable=False)

    def begin(self) -> None:
        """The last step is done."""
        self._began = time.time()  # the clock of `tf.timestamp`

    def computed(self, gradients: Sequence[Any]) -> None:
        """Within the step: these are there, and not yet averaged. Of several optimizers the first counts: it waits for no other rank."""
        graph = tf.compat.v1.get_default_graph()
        if self._moment is None or graph is self._graph:
            return
        self._graph = graph
        there = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients]
        with tf.control_dependencies(there), tf.device("CPU:0"):
            self._moment.assign(tf.timestamp())

    def seconds(self) -> float:
        """The step is done: how long this rank worked by itself; 0 for a single process."""
        return 0.0 if self._moment is None else max(0.0, float(self._moment.numpy()) - self._began)
