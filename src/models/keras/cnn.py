"""Two convolutions, batch normalisation, one hidden layer: enough for digits."""

import keras
from keras import layers

from src.config.choices import CnnModel


def cnn(image: keras.KerasTensor, config: CnnModel, classes: int) -> keras.KerasTensor:
    """Images [b, H, W, C] to logits [b, classes]; the image is halved once."""
    x = image
    for filters in (config.width, 2 * config.width):
        x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)
        x = layers.ReLU()(x)
    x = layers.MaxPooling2D()(x)
    x = layers.Flatten()(x)
    x = layers.Dense(128, activation="relu")(x)
    x = layers.Dropout(config.dropout)(x)
    return layers.Dense(classes, dtype="float32")(x)  # float32 with any precision: the loss needs it
