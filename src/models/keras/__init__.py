"""Functions that return a `keras.Model`. Images have channels last, [b, H, W, C]."""

import math

import keras


def count_parameters(model: keras.Model) -> int:
    """Return the number of trainable parameters."""
    return sum(math.prod(v.shape) for v in model.trainable_variables)
