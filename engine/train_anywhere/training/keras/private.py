"""The private names of Keras that a run uses. Each is looked up first: without it, one feature is off.

A test takes each of them away and trains.
"""

from typing import Any

import keras
import tensorflow as tf

from train_anywhere.errors import ConfigError

SUMS_GRADIENTS, BUILDS, RATE = "_all_reduce_sum_gradients", "_maybe_symbolic_build", "_learning_rate"


def keep_gradients(optimizer: keras.optimizers.Optimizer) -> None:
    """Keep Keras from summing averaged gradients over the replicas. Raises ConfigError: it does so elsewhere, on TensorFlow's replicas."""
    if hasattr(optimizer, SUMS_GRADIENTS):
        setattr(optimizer, SUMS_GRADIENTS, lambda gradients_and_variables: gradients_and_variables)
    elif tf.distribute.has_strategy():
        raise ConfigError(
            f"Keras {keras.__version__} averages gradients in another way than its version 3.15, for which this strategy is written; use "
            "strategy=horovod, or trainer.devices=1."
        )


def skip_build(model: keras.Model) -> None:
    """Keep `fit` from building a built model: it would reduce a batch over the workers, and fail.

    See https://github.com/keras-team/keras/issues/20585.
    """
    if tf.distribute.has_strategy() and hasattr(model, BUILDS):
        setattr(model, BUILDS, lambda **_: None)


def rate_source(optimizer: keras.optimizers.Optimizer) -> Any:
    """Return the schedule or variable of the learning rate; without its name, the rate of the next step."""
    return getattr(optimizer, RATE, optimizer.learning_rate)
