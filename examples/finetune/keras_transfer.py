r"""Transfer learning with Keras in two stages: a network learns the digits 0 to 4, then its last two layers learn 5 to 9.

    python src/train.py framework=keras name=stage1 task._target_=examples.finetune.keras_transfer.make_model \
        data._target_=examples.finetune.keras_transfer.open_digits checkpoint.monitor=val/loss trainer.max_epochs=6
    python src/train.py framework=keras name=stage2 task._target_=examples.finetune.keras_transfer.make_model task.frozen=true \
        data._target_=examples.finetune.keras_transfer.open_digits data.first=5 checkpoint.monitor=val/loss trainer.max_epochs=6 \
        init=results/latest

On a cluster both are submitted at once: add `cluster=slurm` to both, and `after=RUN` to the second one, with the run folder of the first.
`python src/evaluate.py RUN --export keras` writes a file for `keras.saving.load_model`.
"""

from pathlib import Path

import keras
import numpy as np
from keras import layers

DIGITS = Path(__file__).parents[2] / "src/data/digits.npz"
Part = tuple[np.ndarray, np.ndarray]


def make_model(frozen: bool = False) -> keras.Model:
    """Return a convolutional network; `frozen`: the convolutions are not trained."""
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(5),
        ]
    )
    for layer in model.layers[:2]:
        layer.trainable = not frozen
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=None, loss=loss, metrics=["accuracy"])
    return model


def open_digits(first: int = 0) -> dict[str, Part]:
    """Return the images of five digits from `first` on, and their labels from 0 to 4."""
    arrays = np.load(DIGITS)
    chosen = (arrays["labels"] >= first) & (arrays["labels"] < first + 5)
    images, labels = arrays["images"][chosen, :, :, None] / np.float32(16), arrays["labels"][chosen] - first
    cuts = [int(0.6 * len(labels)), int(0.8 * len(labels))]
    parts = zip(np.split(images, cuts), np.split(labels, cuts), strict=True)
    return dict(zip(("train", "val", "test"), parts, strict=True))
