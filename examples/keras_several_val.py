r"""Two validation sets: Keras validates on one, and a callback on another.

    python src/train.py framework=keras task._target_=examples.keras_model.make_model \
        data._target_=examples.keras_model.open_data checkpoint.monitor=val/noisy_accuracy \
        callbacks.noisy._target_=examples.keras_several_val.ValidateNoisy

What a callback adds to the logs of an epoch is logged like any other metric: `val_noisy_accuracy` is val/noisy_accuracy.
The best checkpoint is the one with the best `checkpoint.monitor`.
"""

import keras
import numpy as np

from examples.keras_model import open_data


class ValidateNoisy(keras.callbacks.Callback):
    """Evaluates the model on the validation set with noise, whose standard deviation is `noise`."""

    def __init__(self, noise: float = 0.3) -> None:
        super().__init__()
        images, self.labels = open_data()["val"]
        self.images = images + noise * np.random.default_rng(1).normal(size=images.shape)

    def on_epoch_end(self, epoch: int, logs: dict) -> None:
        """Add loss and accuracy on this set to the logs."""
        metrics = self.model.evaluate(self.images, self.labels, verbose=0, return_dict=True)
        logs.update({f"val_noisy_{name}": value for name, value in metrics.items()})
