"""Restore a checkpoint, which holds plain values only; any damage becomes one clear error."""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.trainer.states import TrainerFn
from torch.distributed.checkpoint.api import CheckpointException

from train_anywhere.checkpoints.disk.copy_files import refuse_compressed
from train_anywhere.data.torch import random_states
from train_anywhere.errors import CheckpointError, ProjectError
from train_anywhere.training.lightning.dropin.trainable import KEY, restore_groups, set_flags, trainable_state
from train_anywhere.training.lightning.dropin.validated_weights import (
    with_training_weights,
    with_validated_weights,
)
from train_anywhere.training.lightning.loop.private import _CheckpointConnector


class Restorer(_CheckpointConnector):
    """Lightning's checkpoint connector, changed to read always with `weights_only=True` and to restore which parameters are trainable.

    Lightning does not pass `weights_only` on for some strategies.

    Attributes:
        completes: give on_load_checkpoint the new module's values for the entries that were left out of the checkpoint.
        trainable: the trainable state of the checkpoint, until the start hooks have been called.
    """

    def __init__(self, trainer: pl.Trainer, completes: bool) -> None:
        super().__init__(trainer)
        self.completes = completes
        self.trainable: dict[str, Any] = {}

    def _restore_modules_and_callbacks(self, checkpoint_path: Any = None, weights_only: Any = None) -> None:
        with as_checkpoint_error(checkpoint_path):
            if checkpoint_path:
                refuse_compressed(Path(checkpoint_path))
            super()._restore_modules_and_callbacks(checkpoint_path, weights_only=True)

    def restore_model(self) -> None:
        """Restore the module, after adding the entries that were left out (see `completes`)."""
        loaded: dict[str, Any] = self._loaded_checkpoint
        if loaded and self.completes:
            add_left_out(loaded, self.trainer.lightning_module)
        super().restore_model()

    def restore_training_state(self) -> None:
        """Restore the trainable state, the optimizers and the loops."""
        with as_checkpoint_error(self._ckpt_path):
            if self.trainer.state.fn == TrainerFn.FITTING:
                self.trainable = self._loaded_checkpoint.get(KEY, {})
                set_flags(self.trainer.lightning_module, self.trainable)
                restore_groups(self.trainer.lightning_module, self.trainer.optimizers, self.trainable)
            if self._loaded_checkpoint and self.trainer.state.fn == TrainerFn.FITTING:
                self._restore_position()
            super().restore_training_state()

    def _restore_position(self) -> None:
        """Open the loaders of a user's module, whose length decides where training continues."""
        trainer: Any = self.trainer
        callbacks = [c for c in trainer.callbacks if hasattr(c, "restore_position") and c.writer.newest]
        if not callbacks:
            return  # one like LearningRateFinder restores a checkpoint of its own
        with random_states.preserve():  # a new run opens them after the validation loaders
            trainer.fit_loop.setup_data()
            for callback in callbacks:
                trainer.fit_loop.skip_batches(*callback.restore_position(trainer, self._loaded_checkpoint))

    def dump_checkpoint(self, weights_only: bool | None = None) -> dict[str, Any]:
        """Return the content of a checkpoint, with the validated weights."""
        state = {**super().dump_checkpoint(weights_only), KEY: trainable_state(self.trainer)}
        return with_validated_weights(state, self.trainer.validated_weights.validated)

    def resume_start(self, checkpoint_path: Any = None, weights_only: bool | None = None) -> None:
        """Read the checkpoint. Training continues from the training weights, not from the validated ones."""
        super().resume_start(checkpoint_path, weights_only)
        if checkpoint_path and self.trainer.state.fn == TrainerFn.FITTING:
            with_training_weights(self._loaded_checkpoint)

    def restore_callbacks(self) -> None:
        """Restore callbacks for training only: a test must use the checkpoint's weights, and a callback could replace them."""
        if self.trainer.state.fn == TrainerFn.FITTING:
            super().restore_callbacks()


def add_left_out(checkpoint: dict[str, Any], module: pl.LightningModule) -> None:
    """Add the entries of the module's on_save_checkpoint that `checkpoint.other_objects=leave_out` left out of the checkpoint."""
    fresh = {k: dict(v) if isinstance(v, dict) else v for k, v in checkpoint.items()}
    module.on_save_checkpoint(fresh)
    checkpoint |= {k: v for k, v in fresh.items() if k not in checkpoint}


@contextmanager
def as_checkpoint_error(path: object) -> Iterator[None]:
    """Turn any error of torch or Lightning at an unexpected file into a CheckpointError."""
    try:
        yield
    except ProjectError:
        raise
    except CheckpointException as error:
        raise _to_checkpoint_error(path, next(cause for cause, _ in error.failures.values())) from error
    except Exception as error:
        raise _to_checkpoint_error(path, error) from error


def _to_checkpoint_error(path: object, error: BaseException) -> ProjectError:
    if isinstance(error, ProjectError):
        return error
    if isinstance(error, pickle.UnpicklingError):
        return CheckpointError(
            f"{path} is damaged, or holds more than tensors and numbers; it is not read, because that could run code. "
            "Move its folder away to resume from the checkpoint before it."
        )
    message = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return CheckpointError(
        f"{path} can't be resumed: {message} It is damaged, or was written with another model or version. "
        "Move its folder away to resume from the checkpoint before it."
    )
