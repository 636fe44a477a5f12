r"""A keras.Model with its own train_step: an autoencoder that learns to remove noise from images.

    python src/train.py framework=keras task._target_=examples.keras_train_step.Denoiser \
        data._target_=examples.keras_train_step.open_data

`train_step` and `test_step` are called as `fit` and `evaluate` call them. What they return is logged as train/<name> and val/<name>.
Create layers, metrics and random seeds in the constructor: their state is part of each checkpoint.
"""

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras import layers

DIGITS = Path(__file__).parents[1] / "src/data/digits.npz"
"""1,797 handwritten digits: images uint8 [1797, 8, 8] of 0 to 16, and labels."""


class Denoiser(keras.Model):
    """Returns images [b, 64] without the noise; `noise` is its standard deviation, with pixels from 0 to 1."""

    def __init__(self, width: int = 32, noise: float = 0.2) -> None:
        super().__init__()
        self.encoder = layers.Dense(width, activation="relu")
        self.decoder = layers.Dense(64, activation="sigmoid")
        self.noise, self.seeds = noise, keras.random.SeedGenerator(1)
        self.error = keras.metrics.Mean(name="loss")

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Return the images that the network sees behind the noise."""
        return self.decoder(self.encoder(images))

    def train_step(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        """Make one optimizer step; `self.optimizer` is that of `optimizer=`."""
        noisy = images + self.noise * keras.random.normal(tf.shape(images), seed=self.seeds)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(noisy, training=True) - images) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.error.update_state(loss, sample_weight=tf.shape(images)[0])
        return {"loss": self.error.result()}

    def test_step(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        """Measure the error on new images."""
        noisy = images + self.noise * keras.random.normal(tf.shape(images), seed=self.seeds)
        loss = tf.reduce_mean((self(noisy) - images) ** 2)
        self.error.update_state(loss, sample_weight=tf.shape(images)[0])
        return {"loss": self.error.result()}


def open_data(batch_size: int = 96) -> dict[str, tf.data.Dataset]:
    """Return batches of images float32 [b, 64]; for several GPUs return arrays instead, as keras_model.py does."""
    images = np.load(DIGITS)["images"].reshape(-1, 64).astype("float32") / 16
    train = tf.data.Dataset.from_tensor_slices(images[:1400]).shuffle(1400)
    val = tf.data.Dataset.from_tensor_slices(images[1400:])
    return {"train": train.batch(batch_size), "val": val.batch(batch_size)}
