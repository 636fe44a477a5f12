"""Models for Keras: `build_model` turns the `model` part of the configuration into a `keras.Model`."""

import math

import keras

from src.config.choices import CnnModel, MlpModel, Model, ResnetModel
from src.models.keras.cnn import cnn
from src.models.keras.mlp import mlp
from src.models.keras.resnet import resnet


def build_model(config: Model, shape: tuple[int, int, int], classes: int) -> keras.Model:
    """A new model that turns images float32 [b, H, W, C] into logits float32 [b, classes].

    Args:
        config: which model, and its sizes.
        shape: height and width in pixels, number of channels.
        classes: number of classes.
    """
    image = keras.Input(shape)
    match config:
        case MlpModel():
            logits = mlp(image, config, classes)
        case CnnModel():
            logits = cnn(image, config, classes)
        case ResnetModel():
            logits = resnet(image, config, classes)
    return keras.Model(image, logits, name=config.name)


def parameter_count(model: keras.Model) -> int:
    """Number of trainable parameters."""
    return sum(math.prod(v.shape) for v in model.trainable_variables)
