"""Create the Keras callbacks of the configuration, and save their attributes."""

import json
import types
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import PurePath
from typing import Any

import keras
import numpy as np

from train_anywhere.config.choices import Callback
from train_anywhere.config.instantiate import explain_target_errors, instantiate
from train_anywhere.config.keys import TARGET
from train_anywhere.errors import CheckpointError, ConfigError
from train_anywhere.training.keras.checkpoint import Position
from train_anywhere.training.keras.dropin.gradients import single_optimizers
from train_anywhere.training.keras.module import Module
from train_anywhere.training.keras.strategies.base import Strategy

SEQUENCES: dict[str, type] = {"list": list, "tuple": tuple, "set": set}

NOT_SAVED = (
    str, PurePath, type, partial, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType,
    keras.losses.Loss, keras.optimizers.schedules.LearningRateSchedule,
)  # fmt: skip
"""Types of attributes that need not be saved: they do not change, or other attributes determine them."""


def encode(value: Any) -> Any:
    """Return plain data for JSON. Raises TypeError for other values, and for paths."""
    if value is None or type(value) in (bool, int, float) or (type(value) is str and "/" not in value):
        return value
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        return {kind: [value.dtype.name, value.shape, b64encode(value.tobytes()).decode()]}
    if type(value) in SEQUENCES.values():
        return {type(value).__name__: [encode(item) for item in value]}
    if type(value) is dict:
        return {"dict": [[encode(key), encode(item)] for key, item in value.items()]}
    raise TypeError(value)


def decode(value: Any) -> Any:
    """Return the value that `encode` was called with."""
    if not isinstance(value, dict):
        encode(value)
        return value
    ((kind, items),) = value.items()
    if kind in ("array", "scalar"):
        array = np.frombuffer(b64decode(items[2]), items[0]).reshape(items[1]).copy()
        return array if kind == "array" else array[()]
    if kind == "dict":
        return {decode(key): decode(item) for key, item in items}
    return SEQUENCES[kind](decode(item) for item in items)


class CallbackStates:
    """The attributes of callbacks, by name on all ranks, that changed after construction."""

    def __init__(self, callbacks: Mapping[str, keras.callbacks.Callback]) -> None:
        self.callbacks = callbacks
        self._first = {key: hash(value) for key, value in self._attributes() if isinstance(value, str)}

    def save(self) -> dict[str, dict[str, str]]:
        """Return the current state: the JSON of each changed attribute, by callback and attribute."""
        saved: dict[str, dict[str, str]] = {name: {} for name in self.callbacks}
        for key, value in self._attributes():
            if isinstance(value, str) and self._first.get(key) != hash(value):
                self._first.pop(key, None)  # once changed, it is always saved, even if it changes back
                saved[key[0]][key[1]] = value
        return saved

    def restore(self, saved: Mapping[str, Mapping[str, str]], strategy: Strategy) -> None:
        """Restore a saved state, except what differs between ranks. Raises CheckpointError."""
        here = self.save()
        first = strategy.broadcast_json(here)
        try:
            for name, callback in self.callbacks.items():
                for attribute, text in saved.get(name, {}).items():
                    if here[name].get(attribute) == first[name].get(attribute):
                        vars(callback)[attribute] = decode(json.loads(text))
                        self._first.pop((name, attribute), None)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise CheckpointError(f"the checkpoint's state of callbacks can't be read: {error!r}.") from error

    def unsaved_notes(self) -> list[str]:
        """Return a note for each attribute that checkpoints can't hold."""
        return [
            f"callbacks.{name.split()[0]}.{attribute} is a {type(error.args[0]).__name__}, which checkpoints can't hold: a resumed run "
            "creates it again, and may differ from one that never stopped; use numbers, strings, arrays, lists and dicts."
            for (name, attribute), error in self._attributes()
            if isinstance(error, Exception) and not isinstance(error.args[0], NOT_SAVED)
        ]

    def _attributes(self) -> Iterator[tuple[tuple[str, str], str | Exception]]:
        """Yield the JSON of each attribute, or an error with the object that can't be saved."""
        for name, callback in self.callbacks.items():
            # Keras changes the sign of min_delta once, together with a function that is not saved
            left_out = {"params", "_model", "min_delta" if hasattr(callback, "monitor_op") else ""}
            for attribute in vars(callback).keys() - left_out:
                try:
                    yield (name, attribute), json.dumps(encode(vars(callback)[attribute]))
                except (TypeError, RecursionError) as error:
                    yield (name, attribute), error


SAVERS = ("ModelCheckpoint", "BackupAndRestore")
WRITERS = ("CSVLogger", "TensorBoard", "RemoteMonitor")
"""Keras callbacks that write files or send data: only rank 0 has them."""


def make_callbacks(
    sections: Mapping[str, Callback], module: Module, position: Position
) -> tuple[list[keras.callbacks.Callback], CallbackStates]:
    """Return the callbacks, with a History, and their states. Only rank 0 has writers.

    Raises:
        ConfigError: an object is not a Keras callback, or writes its own checkpoints.
    """
    callbacks, saved = [], {}
    for name, section in sections.items():
        where, dotted = f"callbacks.{name}", section.target["keras"]
        with explain_target_errors(f"{where}.{TARGET}={dotted}"):
            callback = instantiate(section, where, "keras")
        refuse_callback(where, dotted, callback)
        if isinstance(callback, keras.callbacks.SwapEMAWeights):
            # left out: the run swaps the averages itself, also for checkpoints
            if not any(one.use_ema for o in module.optimizers for one in single_optimizers(o)):
                raise ConfigError(
                    f"{where} swaps moving averages, and no optimizer has them; add optimizer.use_ema=true, or leave it out."
                )
            module.average_always()
            continue
        writes = _is_one_of(callback, WRITERS)
        if module.strategy.rank == 0 or not writes:
            callbacks.append(callback)
        if not writes:
            saved[f"{name} {type(callback).__module__}.{type(callback).__qualname__}"] = callback
        if position.step and _is_one_of(callback, ("CSVLogger",)):
            callback.append = True
    if not any(isinstance(one, keras.callbacks.History) for one in callbacks):
        # behind those that add to the logs, as in `fit`; a CallbackList sets `model.history` to it
        callbacks.append(keras.callbacks.History())
        saved["history"] = callbacks[-1]
    return callbacks, CallbackStates(saved)


def refuse_callback(key: str, dotted: str, callback: Any) -> None:
    """Raise ConfigError for an object that is not a Keras callback, or that saves checkpoints."""
    if not isinstance(callback, keras.callbacks.Callback):
        raise ConfigError(
            f"{key}._target_={dotted} returns a {type(callback).__name__}, not a keras.callbacks.Callback."
        )
    if _is_one_of(callback, SAVERS):
        raise ConfigError(
            f"{key} is a {type(callback).__name__}, and this project writes the checkpoints from which a run resumes; leave it out, and "
            "use checkpoint.every_n_epochs, checkpoint.monitor and checkpoint.keep_last."
        )


def _is_one_of(callback: Any, names: tuple[str, ...]) -> bool:
    return any(
        kind.__name__ in names and kind.__module__.startswith("keras") for kind in type(callback).__mro__
    )
