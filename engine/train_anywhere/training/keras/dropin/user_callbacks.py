"""Create the Keras callbacks of the configuration, and save their attributes and those of the model."""

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping

import keras

from train_anywhere.config.choices import Callback
from train_anywhere.config.instantiate import make_kind
from train_anywhere.errors import CheckpointError, ConfigError
from train_anywhere.training.attributes import Attributes, unpack
from train_anywhere.training.keras.attributes import Keras, held_by_checkpoint
from train_anywhere.training.keras.checkpoint import Position
from train_anywhere.training.keras.dropin.gradients import single_optimizers
from train_anywhere.training.keras.module import Module
from train_anywhere.training.keras.strategies.base import Strategy


class CallbackStates:
    """The attributes of the model and of callbacks, by name on all ranks, that have changed since this object was made.

    Args:
        callbacks: by key. Their names start with `callbacks`.
        model: its variables are in the checkpoint anyway.
        report: called with a line for each attribute that can't be kept.
    """

    def __init__(
        self,
        callbacks: Mapping[str, keras.callbacks.Callback],
        model: keras.Model,
        report: Callable[[str], None],
    ) -> None:
        self.callbacks = callbacks
        roots = {"model": model, **callbacks}
        self.attributes = Attributes(roots, Keras(), lambda: held_by_checkpoint(model), report)

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
    sections: Mapping[str, Callback], module: Module, position: Position, report: Callable[[str], None]
) -> tuple[list[keras.callbacks.Callback], CallbackStates]:
    """Return the callbacks, with a History, and their states. Only rank 0 has writers.

    Raises:
        ConfigError: an object is not a Keras callback, or writes its own checkpoints.
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
        if isinstance(callback, keras.callbacks.SwapEMAWeights):
            # left out: the run swaps the averages itself, also for checkpoints
            if not any(one.use_ema for o in module.optimizers for one in single_optimizers(o)):
                raise ConfigError(
                    f"{where} swaps moving averages, and no optimizer has them; add optimizer.use_ema=true, or leave it out."
                )
            module.average_always()
            continue
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
