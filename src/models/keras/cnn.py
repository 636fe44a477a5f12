"""A small convolutional network for small images."""

import keras
from keras import layers

from train_anywhere.config import Channels, Probability


def cnn(shape: tuple[int, int, int], outputs: int, width: Channels, dropout: Probability) -> keras.Model:
    """Return two convolutions and a dense layer, from [b, H, W, C] to [b, outputs]."""
    image = x = keras.Input(shape)
    for filters in (width, 2 * width):
        x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)
        x = layers.ReLU()(x)
    x = layers.MaxPooling2D()(x)
    x = layers.Flatten()(x)
    x = layers.Dense(128, activation="relu")(x)
    x = layers.Dropout(dropout)(x)
    x = layers.Dense(outputs, dtype="float32")(x)  # float32 in any precision: the loss needs it
    return keras.Model(image, x, name="cnn")
