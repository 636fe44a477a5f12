"""Find batch normalization layers, and synchronize them over replicas."""

import keras

from train_anywhere.training.keras.strategies.base import Strategy


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
