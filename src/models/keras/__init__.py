"""Models for Keras: `build_model` turns the `model` part of the configuration into a `keras.Model`."""

import math

import keras

from src.config.choices import CnnModel, MlpModel, Model, ResnetModel
from src.errors import ConfigError
from src.models.keras.cnn import cnn
from src.models.keras.mlp import mlp
from src.models.keras.resnet import resnet


def build_model(model: Model, shape: tuple[int, int, int], classes: int) -> keras.Model:
    """A new model that turns images float32 [b, H, W, C] into logits float32 [b, classes].

    Args:
        model: the section `model` of the configuration.
        shape: height and width in pixels, number of channels.
        classes: number of classes.

    Raises:
        ConfigError: the model exists for the other framework only.
    """
    image = keras.Input(shape)
    match model:
        case MlpModel():
            logits = mlp(image, model, classes)
        case CnnModel():
            logits = cnn(image, model, classes)
        case ResnetModel():
            logits = resnet(image, model, classes)
        case _:
            raise ConfigError(
                f"model={model.name} has no network for framework=keras; use framework=lightning, or another model."
            )
    return keras.Model(image, logits, name=model.name)


def parameter_count(model: keras.Model) -> int:
    """Number of trainable parameters."""
    return sum(math.prod(v.shape) for v in model.trainable_variables)
