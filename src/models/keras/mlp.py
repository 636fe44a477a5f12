"""Fully connected layers."""

import keras
from keras import layers

from src.config.choices import MlpModel


def mlp(image: keras.KerasTensor, config: MlpModel, classes: int) -> keras.KerasTensor:
    """Images [b, H, W, C] to logits [b, classes]: for each hidden layer Dense, ReLU, Dropout."""
    x = layers.Flatten()(image)
    for width in config.hidden:
        x = layers.Dense(width, activation="relu")(x)
        x = layers.Dropout(config.dropout)(x)
    return layers.Dense(classes, dtype="float32")(x)  # float32 with any precision: the loss needs it
