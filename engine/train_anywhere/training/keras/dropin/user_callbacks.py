"""What `callbacks` names, as objects of Keras that the loop calls."""

from typing import Any

import keras

from train_anywhere.config.instantiate import instantiate, refusals
from train_anywhere.config.open_groups import TARGET
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError
from train_anywhere.training.keras.checkpoint.callback_state import CallbackStates
from train_anywhere.training.keras.checkpoint.position import Position
from train_anywhere.training.keras.dropin.gradients import averaging
from train_anywhere.training.keras.module import Module
from train_anywhere.training.plan import Plan

SAVERS = ("ModelCheckpoint", "BackupAndRestore")
WRITERS = ("CSVLogger", "TensorBoard", "RemoteMonitor")
"""Keras' callbacks that write files or send: on rank 0 alone."""


def make_callbacks(
    config: Config, module: Module, plan: Plan, position: Position
) -> tuple[keras.callbacks.CallbackList, CallbackStates]:
    """All that `callbacks` names, and their states; each rank has its own, apart from those that write.

    Raises:
        ConfigError: one is no callback of Keras', or writes checkpoints of its own.
    """
    made, kept = [], {}
    for name, section in config.callbacks.items():
        where, dotted = f"callbacks.{name}", section.target["keras"]
        with refusals(f"{where}.{TARGET}={dotted}"):
            callback = instantiate(section, where, "keras")
        refuse_callback(where, dotted, callback)
        if isinstance(callback, keras.callbacks.SwapEMAWeights):  # the loop swaps, also for each checkpoint
            if not averaging(module.optimizers):
                raise ConfigError(
                    f"{where} swaps averages that no optimizer keeps; add optimizer.use_ema=true, or leave it out."
                )
            module.averages_always = True
            callback._swap_variables = callback._finalize_ema_values = lambda: None
        writes = _is_one_of(callback, WRITERS)
        if module.strategy.rank == 0 or not writes:
            made.append(callback)
        if not writes:
            kept[f"{name} {type(callback).__module__}.{type(callback).__qualname__}"] = callback
        if position.step and _is_one_of(callback, ("CSVLogger",)):
            callback.append = True
    module.model.stop_training = False
    called = keras.callbacks.CallbackList(
        made,
        add_history=False,
        add_progbar=False,
        model=module.model,
        verbose=0,
        epochs=plan.max_epochs,
        steps=plan.steps_per_epoch,
    )
    return called, CallbackStates(kept)


def refuse_callback(key: str, dotted: str, callback: Any) -> None:
    """Raise ConfigError for what the loop can't call, and for what would write a second kind of checkpoints."""
    if not isinstance(callback, keras.callbacks.Callback):
        raise ConfigError(
            f"{key}._target_={dotted} makes a {type(callback).__name__}, which is no keras.callbacks.Callback."
        )
    if _is_one_of(callback, SAVERS):
        raise ConfigError(
            f"{key} is a {type(callback).__name__}, and this project writes the checkpoints, which a run resumes from; leave it out, and "
            "use checkpoint.every_n_epochs, checkpoint.monitor and checkpoint.keep_last."
        )


def _is_one_of(callback: Any, names: tuple[str, ...]) -> bool:
    return any(
        kind.__name__ in names and kind.__module__.startswith("keras") for kind in type(callback).__mro__
    )
