"""Loss and sums of a batch."""

import numpy as np
import pytest


def test_padding_counts_nowhere_and_r2_is_that_of_the_formula() -> None:
    import tensorflow as tf

    from src.tasks.keras.regression import Regression

    random = np.random.default_rng(0)
    targets, guesses = random.normal(size=(2, 6, 1)).astype(np.float32)
    weights = tf.constant([1.5, 1.5, 1.5, 1.5, 0.0, 0.0])
    task = Regression()
    batch = {"columns": tf.constant(guesses), "targets": tf.constant(targets)}
    losses, sums = task.step(lambda columns, training: columns, batch, weights, training=False)
    np.testing.assert_allclose(losses, ((guesses - targets) ** 2)[:, 0], rtol=1e-6)
    metrics = task.report("val", sums.numpy())
    error, y = (guesses - targets)[:4].astype(np.float64), targets[:4].astype(np.float64)
    assert metrics["val/loss"] == pytest.approx((error**2).mean())
    assert metrics["val/mae"] == pytest.approx(np.abs(error).mean())
    assert metrics["val/r2"] == pytest.approx(1 - (error**2).sum() / ((y - y.mean()) ** 2).sum(), rel=1e-5)
