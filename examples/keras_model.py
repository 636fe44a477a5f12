r"""A compiled keras.Model and its arrays, as they are written for `fit`.

    python src/train.py framework=keras task._target_=examples.keras_model.make_model \
        data._target_=examples.keras_model.open_data

Arguments of both functions are keys, such as `task.width=32`. The model is compiled without an optimizer, so it gets
`optimizer` and `schedule`; an optimizer that is compiled in is kept.
"""

from pathlib import Path

import keras
import numpy as np
from keras import layers

DIGITS = Path(__file__).parents[1] / "src/data/digits.npz"
"""1,797 handwritten digits: images uint8 [1797, 8, 8] of 0 to 16, and labels."""


def make_model(width: int = 16) -> keras.Model:
    """Return a convolutional network that is compiled with a loss and a metric."""
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(width, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=None, loss=loss, metrics=["accuracy"])
    return model


def open_data() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return arrays (x, y) to train and to validate on; `data.batch_size` rows are a batch."""
    arrays = np.load(DIGITS)
    images = arrays["images"][..., np.newaxis].astype("float32") / 16
    labels = arrays["labels"].astype("int64")
    return {"train": (images[:1400], labels[:1400]), "val": (images[1400:], labels[1400:])}
