"""Create the Keras callbacks of the configuration, which the loop calls."""

from collections.abc import Mapping
from typing import Any

import keras

from train_anywhere.config.choices import Callback
from train_anywhere.config.instantiate import explain_target_errors, instantiate
from train_anywhere.config.keys import TARGET
from train_anywhere.errors import ConfigError
from train_anywhere.training.keras.checkpoint.callback_state import CallbackStates
from train_anywhere.training.keras.checkpoint.position import Position
from train_anywhere.training.keras.dropin.gradients import averaging_optimizers
from train_anywhere.training.keras.module import Module
from train_anywhere.training.plan import Plan

SAVERS = ("ModelCheckpoint", "BackupAndRestore")
WRITERS = ("CSVLogger", "TensorBoard", "RemoteMonitor")
"""Keras callbacks that write files or send data: only rank 0 has them."""


def make_callbacks(
    sections: Mapping[str, Callback], module: Module, plan: Plan, position: Position
) -> tuple[keras.callbacks.CallbackList, CallbackStates]:
    """Return the callbacks of the configuration and their states; each rank has its own, except those that write.

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
            # disabled: the loop swaps the averages itself, also for checkpoints
            if not averaging_optimizers(module.optimizers):
                raise ConfigError(
                    f"{where} swaps moving averages, and no optimizer has them; add optimizer.use_ema=true, or leave it out."
                )
            module.averages_always = True
            callback._swap_variables = callback._finalize_ema_values = lambda: None
        writes = _is_one_of(callback, WRITERS)
        if module.strategy.rank == 0 or not writes:
            callbacks.append(callback)
        if not writes:
            saved[f"{name} {type(callback).__module__}.{type(callback).__qualname__}"] = callback
        if position.step and _is_one_of(callback, ("CSVLogger",)):
            callback.append = True
    if sections and not any(isinstance(one, keras.callbacks.History) for one in callbacks):
        # behind those that add to the logs, as in `fit`; the list sets `model.history` to it
        callbacks.append(keras.callbacks.History())
        saved["history"] = callbacks[-1]
    module.model.stop_training = False
    callback_list = keras.callbacks.CallbackList(
        callbacks,
        add_history=False,
        add_progbar=False,
        model=module.model,
        verbose=0,
        epochs=plan.max_epochs,
        steps=plan.steps_per_epoch,
    )
    return callback_list, CallbackStates(saved)


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
