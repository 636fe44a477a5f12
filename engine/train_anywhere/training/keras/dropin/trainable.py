"""Which layers and variables of a model are trainable, which user code may change; batch normalization layers."""

from collections.abc import Sequence
from typing import Any

import keras

from train_anywhere.training.keras.strategies.base import Strategy


def trainable_parts(model: keras.Model) -> list[Any]:
    """Return all layers, then all variables, in the model's own order."""
    return [*model._flatten_layers(), *model.variables]


def read_flags(model: keras.Model) -> list[bool]:
    """Return `trainable` of all `trainable_parts`."""
    return [bool(part.trainable) for part in trainable_parts(model)]


def set_flags(model: keras.Model, flags: Sequence[bool]) -> None:
    """Set the flags that `read_flags` returned; flags of another number are ignored."""
    parts = trainable_parts(model)
    if len(flags) == len(parts):
        for part, flag in zip(parts, flags, strict=True):
            # a layer's public setter would also change its sublayers and variables
            setattr(part, "_trainable" if isinstance(part, keras.layers.Layer) else "trainable", flag)


def read_built(model: keras.Model, optimizers: Sequence[keras.optimizers.Optimizer]) -> list[list[int]]:
    """Return, for each optimizer, the indices of the model's variables that it has a state for."""
    numbers = {id(v): number for number, v in enumerate(model.variables)}
    return [[numbers[id(v)] for v in o._trainable_variables if id(v) in numbers] for o in optimizers]


def find_batch_norms(model: keras.Model) -> list[keras.layers.BatchNormalization]:
    """Return all batch normalization layers of a model, also nested ones."""
    layers = model._flatten_layers()  # `layers` has only the outermost ones
    return [layer for layer in layers if isinstance(layer, keras.layers.BatchNormalization)]


def synchronize_batch_norms(model: keras.Model, strategy: Strategy) -> None:
    """Make each layer normalize by the mean and variance of the whole global batch; call this before a step is traced.

    Keras sums the rows, their squares and their number over the replicas, also in the backward pass: five small reductions per layer and
    step. With a mask, Keras still normalizes by the rows of each replica only.
    """
    if strategy.replicas > 1:
        for layer in find_batch_norms(model):
            layer.synchronized = True
