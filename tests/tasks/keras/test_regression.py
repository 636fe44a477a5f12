"""Regression: metrics over batches of different sizes are those of all rows."""

from typing import Any

import numpy as np
import pytest


def batches(data: Any, size: int) -> Any:
    """Return batches, of which the last one is smaller."""
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(data).batch(size)


def identity(columns: int) -> Any:
    """Return a network that returns its input."""
    import keras

    row = keras.Input((columns,))
    return keras.Model(row, keras.layers.Activation("linear")(row))


def test_metrics_are_those_of_all_rows() -> None:
    from src.tasks.keras.regression import Regression

    random = np.random.default_rng(0)
    targets, guesses = random.normal(size=(2, 10, 1)).astype("float32")
    data = {"columns": guesses, "targets": targets}
    model = Regression(identity(1))
    found = model.evaluate(batches(data, 4), verbose=0, return_dict=True)
    error = guesses - targets
    r2 = 1 - (error**2).sum() / ((targets - targets.mean()) ** 2).sum()
    expected = {"loss": (error**2).mean(), "mae": np.abs(error).mean(), "r2": r2}
    assert found == pytest.approx(expected, rel=1e-4)
    np.testing.assert_array_equal(model.predict(batches({"columns": guesses}, 4), verbose=0), guesses)
