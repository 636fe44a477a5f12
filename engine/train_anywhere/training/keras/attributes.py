"""What a walk over attributes knows about Keras and TensorFlow."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from train_anywhere.training.attributes import Framework

ARRAYS = (tf.Tensor, tf.Variable, keras.Variable)

WALKED = (keras.layers.Layer, keras.callbacks.Callback, keras.metrics.Metric)
LOOKED_AT = (*ARRAYS, *WALKED, keras.random.SeedGenerator, list, dict, set)
"""Types of Keras whose objects users keep in attributes; the containers in models are of Keras, too."""


class Keras(Framework):
    """Keras and TensorFlow."""

    own = (
        tf.distribute.Strategy,
        tf.data.Dataset,
        keras.losses.Loss,
        keras.optimizers.Optimizer,
        keras.optimizers.schedules.LearningRateSchedule,
        keras.KerasTensor,
    )
    walked = WALKED
    arrays = ARRAYS
    generators = (
        *Framework.generators,
        *(
            (kind, lambda g: np.asarray(g.state), lambda g, state: g.state.assign(state))
            for kind in (tf.random.Generator, keras.random.SeedGenerator)
        ),
    )

    def __init__(self) -> None:
        inputs = keras.Input((1,))
        models = [keras.Model(), keras.Model(inputs, inputs), keras.Sequential([keras.layers.Layer()])]
        models[0].compile(loss="mse")
        # what Keras gives to models, layers and callbacks
        self._own = {*vars(keras.callbacks.Callback()), *(name for model in models for name in vars(model))}

    def read(self, array: Any) -> np.ndarray | None:
        """Return the values. None for a type that numpy lacks, and for a tensor of a graph."""
        try:
            values = np.asarray(array)
        except (TypeError, NotImplementedError):
            return None
        return values if values.dtype.kind in "biufc" else None

    def describe(self, array: Any) -> list[Any]:
        """Return the type of the values."""
        return [str(array.dtype)]

    def write(self, old: Any, values: np.ndarray, described: list[Any]) -> Any:
        """Assign to `old` if it is a variable of this shape, else return a new tensor."""
        if isinstance(old, (tf.Variable, keras.Variable)) and tuple(old.shape) == values.shape:
            old.assign(values)
            return old
        return tf.constant(values)

    def attributes(self, owner: Any) -> dict[str, Any] | None:
        """Return the attributes of a model, layer, metric or callback that are the user's."""
        if not isinstance(owner, self.walked):
            return None
        names = self._own
        if is_of_keras(owner) and isinstance(owner, keras.callbacks.Callback):
            # Keras changes the sign of min_delta once, together with a function that it makes at the start
            names = names | {"min_delta", "monitor_op"}
        elif is_of_keras(owner) and not isinstance(owner, keras.Model):
            names = {*vars(owner)}
        layers = owner.layers if isinstance(owner, keras.Model) else []
        # an object of Keras belongs to `fit`, such as an iterator
        found = {
            n: v
            for n, v in vars(owner).items()
            if n not in names and (isinstance(v, LOOKED_AT) or not is_of_keras(v))
        }
        return found | {layer.name: layer for layer in layers}


def is_of_keras(value: Any) -> bool:
    """Return whether the class of a value is Keras' own."""
    return type(value).__module__.startswith("keras.")


def held_by_checkpoint(model: keras.Model) -> dict[str, Any]:
    """Return the variables of a model and its optimizer, by name."""
    optimizer = getattr(model, "optimizer", None)
    variables = [*model.variables, *(optimizer.variables if optimizer is not None else [])]
    return {f"{number} {variable.path}": variable for number, variable in enumerate(variables)}
