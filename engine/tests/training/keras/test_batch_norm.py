"""Layers that normalise over all replicas."""

import keras
import tensorflow as tf

from train_anywhere.training.keras.dropin.gradients import find_parts, synchronize_batch_norms
from train_anywhere.training.keras.strategies.choose import Strategy


def model() -> keras.Model:
    """One layer outside, one within a model within."""
    layers = keras.layers
    inner = keras.Sequential([layers.Dense(3), layers.BatchNormalization()])
    return keras.Sequential([keras.Input((2,)), layers.BatchNormalization(), inner, layers.Dense(1)])


def test_several_replicas_normalise_together() -> None:
    made = model()
    assert [layer.synchronized for layer in find_parts(made, keras.layers.BatchNormalization)] == [
        False,
        False,
    ]
    synchronize_batch_norms(made, Strategy(replicas=1))
    assert [layer.synchronized for layer in find_parts(made, keras.layers.BatchNormalization)] == [
        False,
        False,
    ]
    synchronize_batch_norms(made, Strategy(replicas=2))
    assert [layer.synchronized for layer in find_parts(made, keras.layers.BatchNormalization)] == [True, True]


def test_a_model_without_such_layers_stays_as_it_is() -> None:
    made = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    before = made.get_config()
    synchronize_batch_norms(made, Strategy(replicas=2))
    assert made.get_config() == before
    assert made(tf.ones((1, 2))).shape == (1, 1)
