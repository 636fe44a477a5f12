"""How long a rank works by itself: the moment is taken within the compiled step, before the gradients are averaged."""

import time

import tensorflow as tf

from src.training.keras.pace import Pace


def test_the_wait_for_others_is_not_counted() -> None:
    pace = Pace(processes=2)

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        gradient = tf.numpy_function(lambda v: time.sleep(0.05) or v, [x], tf.float32)
        pace.computed([gradient])
        pace.computed(
            [tf.numpy_function(lambda v: time.sleep(0.2) or v, [gradient], tf.float32)]
        )  # a second optimizer's
        return tf.numpy_function(lambda v: time.sleep(0.2) or v, [gradient], tf.float32)

    step(tf.constant(1.0))
    pace.begin()
    step(tf.constant(1.0))
    assert 0.05 <= pace.seconds() < 0.2


def test_gradients_of_an_embedding_stay_sparse() -> None:
    pace = Pace(processes=2)
    slices = tf.IndexedSlices(tf.ones((1, 4)), tf.constant([0]), tf.constant([1000, 4]))
    step = tf.function(lambda: pace.computed([slices]))
    pace.begin()
    step()
    assert pace.seconds() >= 0


def test_a_single_process_has_nobody_to_compare_with() -> None:
    pace = Pace(processes=1)
    pace.begin()
    assert pace.seconds() == 0.0
