"""A multilayer perceptron."""

import keras
from keras import layers

from train_anywhere.config import HiddenLayers, Probability


def mlp(shape: tuple[int, ...], outputs: int, hidden: HiddenLayers, dropout: Probability) -> keras.Model:
    """Return layers of the widths `hidden` that map rows of any shape to [b, outputs]."""
    row = keras.Input(shape)
    x = layers.Flatten()(row)
    for width in hidden:
        x = layers.Dense(width, activation="relu")(x)
        x = layers.Dropout(dropout)(x)
    x = layers.Dense(outputs, dtype="float32")(x)  # float32 in any precision: the loss needs it
    return keras.Model(row, x, name="mlp")
