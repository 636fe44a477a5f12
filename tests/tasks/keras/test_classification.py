"""Classification: metrics over batches of different sizes are those of all rows."""

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
    from src.tasks.keras.classification import classification

    random = np.random.default_rng(0)
    logits, labels = random.normal(size=(10, 3)).astype("float32"), random.integers(0, 3, 10)
    found = classification(identity(3)).evaluate(batches((logits, labels), 4), verbose=0, return_dict=True)
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(10), labels]
    assert found == pytest.approx({"loss": losses.mean(), "acc": (logits.argmax(1) == labels).mean()})
