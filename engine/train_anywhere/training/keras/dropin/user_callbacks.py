"""Create the Keras callbacks of the configuration, and save their attributes and those of the model."""

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from train_anywhere.config.instantiate import make_kind
from train_anywhere.config.keys import OpenSection
from train_anywhere.errors import CheckpointError, ConfigError
from train_anywhere.training.attributes import Attributes, Framework, unpack
from train_anywhere.training.keras.checkpoint import Position
from train_anywhere.training.keras.dropin.gradients import single_optimizers
from train_anywhere.training.keras.module import Module
from train_anywhere.training.keras.strategies.base import Strategy


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
    walked = (keras.layers.Layer, keras.callbacks.Callback, keras.metrics.Metric)
    arrays = (tf.Tensor, tf.Variable, keras.Variable)
    # types of Keras whose objects users keep in attributes; the containers in models are of Keras, too
    looked_at = (*arrays, *walked, keras.random.SeedGenerator, list, dict, set)
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
            if n not in names and (isinstance(v, self.looked_at) or not is_of_keras(v))
        }
        return found | {layer.name: layer for layer in layers}


def is_of_keras(value: Any) -> bool:
    """Return whether the class of a value is Keras' own."""
    return type(value).__module__.startswith("keras.")


class CallbackStates:
    """The attributes of the model and of callbacks, by name on all ranks, that have changed since this object was made.

    The variables of the model are in the checkpoint anyway. `report` gets a line for each attribute that can't be kept.
    """

    def __init__(
        self,
        callbacks: Mapping[str, keras.callbacks.Callback],
        model: keras.Model,
        report: Callable[[str], None],
    ) -> None:
        self.callbacks = callbacks

        def held() -> dict[str, Any]:
            optimizer = getattr(model, "optimizer", None)
            variables = [*model.variables, *(optimizer.variables if optimizer is not None else [])]
            variables += model.metrics_variables  # one rank can't read the sums of a metric
            return {f"{number} {variable.path}": variable for number, variable in enumerate(variables)}

        self.attributes = Attributes({"model": model, **callbacks}, Keras(), held, report)

    def save(self) -> dict[str, str]:
        """Return the current state, as JSON data."""
        return {"data": b64encode(self.attributes.save()).decode()}

    def restore(self, saved: Mapping[str, str], strategy: Strategy) -> None:
        """Restore a saved state, except what differs between ranks. Raises CheckpointError."""
        here = unpack(self.attributes.save())[0]
        first = strategy.broadcast_json(here)
        own = {path for path in {**here, **first} if here.get(path) != first.get(path)}
        try:
            data = b64decode(saved["data"], validate=True)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the checkpoint's attributes can't be read: {error!r}.") from error
        self.attributes.restore([data], leave=own.__contains__)


SAVERS = (keras.callbacks.ModelCheckpoint, keras.callbacks.BackupAndRestore)
WRITERS = (keras.callbacks.CSVLogger, keras.callbacks.TensorBoard, keras.callbacks.RemoteMonitor)
"""Keras callbacks that write files or send data: only rank 0 has them."""


def make_callbacks(
    sections: Mapping[str, OpenSection], module: Module, position: Position, report: Callable[[str], None]
) -> tuple[list[keras.callbacks.Callback], CallbackStates]:
    """Return the callbacks, with a History, and their states. Only rank 0 has writers.

    Raises ConfigError: an object is not a Keras callback, or writes its own checkpoints.
    """
    callbacks, saved = [], {}
    for name, section in sections.items():
        where, kind = f"callbacks.{name}", keras.callbacks.Callback
        callback = make_kind(section, where, "keras", kind, "keras.callbacks.Callback")
        if isinstance(callback, SAVERS):
            raise ConfigError(
                f"{where} is a {type(callback).__name__}, and this project writes the checkpoints from which a run resumes; leave it out, "
                "and use checkpoint.every_n_epochs, checkpoint.monitor and checkpoint.keep_last."
            )
        if isinstance(callback, keras.callbacks.SwapEMAWeights) and not any(
            one.use_ema for o in module.optimizers for one in single_optimizers(o)
        ):
            raise ConfigError(
                f"{where} swaps moving averages, and no optimizer has them; add optimizer.use_ema=true, or leave it out."
            )
        writes = isinstance(callback, WRITERS)
        if module.strategy.rank == 0 or not writes:
            callbacks.append(callback)
        if not writes:
            saved[where] = callback
        if position.step and isinstance(callback, keras.callbacks.CSVLogger):
            callback.append = True
    if not any(isinstance(one, keras.callbacks.History) for one in callbacks):
        # behind those that add to the logs, as in `fit`; a CallbackList sets `model.history` to it
        callbacks.append(keras.callbacks.History())
        saved["callbacks.history"] = callbacks[-1]
    return callbacks, CallbackStates(saved, module.model, report)
