"""Models for Keras: functions that return a `keras.Model`."""

import math

import keras


def parameter_count(model: keras.Model) -> int:
    """Number of trainable parameters."""
    return sum(math.prod(v.shape) for v in model.trainable_variables)
