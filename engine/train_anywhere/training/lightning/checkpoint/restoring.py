"""Reading a checkpoint: numbers only, and one sentence for anything that is wrong with it."""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.trainer.states import TrainerFn
from torch.distributed.checkpoint.api import CheckpointException

from train_anywhere.checkpoints.disk.plain_zip import refuse_compressed
from train_anywhere.errors import CheckpointError, ProjectError
from train_anywhere.training.lightning.dropin.measured import with_measured, without_measured
from train_anywhere.training.lightning.dropin.trained import KEY, restore_flags, restore_groups, trained_state
from train_anywhere.training.lightning.loop.private import _CheckpointConnector


class Restorer(_CheckpointConnector):
    """Restores always with `weights_only=True`, which Lightning forgets for some strategies; also which parameters are trained.

    Attributes:
        completes: whether on_load_checkpoint gets what was left out of the checkpoint as the new module has it.
        trained: the trained state of the checkpoint, until the hooks of the start have been called.
    """

    def __init__(self, trainer: pl.Trainer, completes: bool) -> None:
        super().__init__(trainer)
        self.completes = completes
        self.trained: dict[str, Any] = {}

    def _restore_modules_and_callbacks(self, checkpoint_path: Any = None, weights_only: Any = None) -> None:
        with one_sentence(checkpoint_path):
            if checkpoint_path:
                refuse_compressed(checkpoint_path)
            super()._restore_modules_and_callbacks(checkpoint_path, weights_only=True)

    def restore_model(self) -> None:
        """Restore the module, see `completes`."""
        loaded: dict[str, Any] = self._loaded_checkpoint
        if loaded and self.completes:
            complete(loaded, self.trainer.lightning_module)
        super().restore_model()

    def restore_training_state(self) -> None:
        """Trained state, optimizer and loops."""
        with one_sentence(self._ckpt_path):
            if self.trainer.state.fn == TrainerFn.FITTING:
                self.trained = self._loaded_checkpoint.get(KEY, {})
                restore_flags(self.trainer.lightning_module, self.trained)
                restore_groups(self.trainer.lightning_module, self.trainer.optimizers, self.trained)
            super().restore_training_state()

    def dump_checkpoint(self, weights_only: bool | None = None) -> dict[str, Any]:
        """Return what a checkpoint holds."""
        state = {**super().dump_checkpoint(weights_only), KEY: trained_state(self.trainer)}
        return with_measured(state, self.trainer.one_model.measured)

    def resume_start(self, checkpoint_path: Any = None, weights_only: bool | None = None) -> None:
        """Read the checkpoint; a training continues with its own weights, not with those that were measured."""
        super().resume_start(checkpoint_path, weights_only)
        if checkpoint_path and self.trainer.state.fn == TrainerFn.FITTING:
            without_measured(self._loaded_checkpoint)

    def restore_callbacks(self) -> None:
        """Restore callbacks for a training: a test is of the weights in the checkpoint, not of those that a callback takes from it."""
        if self.trainer.state.fn == TrainerFn.FITTING:
            super().restore_callbacks()


def complete(checkpoint: dict[str, Any], module: pl.LightningModule) -> None:
    """Add what the module's on_save_checkpoint gives beside the checkpoint's own entries, as `checkpoint.other_objects=leave_out` says."""
    anew = {k: dict(v) if isinstance(v, dict) else v for k, v in checkpoint.items()}
    module.on_save_checkpoint(anew)
    checkpoint |= {k: v for k, v in anew.items() if k not in checkpoint}


@contextmanager
def one_sentence(path: object) -> Iterator[None]:
    """Turn what torch and Lightning raise at an unexpected file into a CheckpointError."""
    try:
        yield
    except ProjectError:
        raise
    except CheckpointException as error:
        raise _sentence(path, next(cause for cause, _ in error.failures.values())) from error
    except Exception as error:
        raise _sentence(path, error) from error


def _sentence(path: object, error: BaseException) -> ProjectError:
    if isinstance(error, ProjectError):
        return error
    if isinstance(error, pickle.UnpicklingError):
        return CheckpointError(
            f"{path} is damaged, or holds more than tensors and numbers; it is not read, because that could run code. "
            "Move its folder away to resume from the checkpoint before it."
        )
    said = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return CheckpointError(
        f"{path} can't be resumed: {said} It is damaged, or was written with another model or version. "
        "Move its folder away to resume from the checkpoint before it."
    )
