"""Batch normalisation: which layers of a model do it, and over whose rows."""

import keras

from train_anywhere.training.keras.strategies.base import Strategy


def batch_norms(model: keras.Model) -> list[keras.layers.BatchNormalization]:
    """Those of the model and of all that is in it."""
    layers = model._flatten_layers()  # `layers` has the outermost ones only
    return [layer for layer in layers if isinstance(layer, keras.layers.BatchNormalization)]


def over_all_replicas(model: keras.Model, strategy: Strategy) -> None:
    """From now on each layer normalises by the mean and variance of the whole global batch; before a step is traced.

    Keras sums the rows, their squares and their number over the replicas, and backwards again: five small reductions in a step for each
    layer. One replica has the whole batch anyway. Rows under a mask stay those of the replica alone: Keras' layer has no other way.
    """
    if strategy.replicas > 1:
        for layer in batch_norms(model):
            layer.synchronized = True
