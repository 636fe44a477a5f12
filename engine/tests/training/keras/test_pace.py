"""The time that a rank works itself ends in the compiled step before gradients are averaged."""

import time

import numpy as np
import tensorflow as tf

from train_anywhere.monitor.heartbeat import Heartbeat
from train_anywhere.training.keras.strategies.base import Pace


def test_the_wait_for_others_is_not_counted() -> None:
    """The moment lies between the end of the first gradient and that of what comes after it."""
    pace = Pace(processes=2)
    done: dict[str, float] = {}

    def work(name: str, value: tf.Tensor) -> tf.Tensor:
        def run(v: np.ndarray) -> np.ndarray:
            time.sleep(0.1)
            done[name] = time.time()
            return v

        return tf.numpy_function(run, [value], tf.float32)

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        gradient = work("first", x)
        pace.mark("gradients", [gradient])
        pace.mark("gradients", [work("second optimizer's", gradient)])
        return work("others'", gradient)

    step(tf.constant(1.0))
    before = time.time()
    pace.start()
    after = time.time()
    step(tf.constant(1.0))
    first, *later = (done[name] for name in ("first", "second optimizer's", "others'"))
    assert first - after <= pace.seconds(Heartbeat()) <= min(later) - before
