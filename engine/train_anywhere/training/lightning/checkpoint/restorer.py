"""Restore a checkpoint or read its weights. Any damage becomes one clear error."""

import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.api import CheckpointException

from train_anywhere.checkpoints.disk.copy_files import refuse_compressed
from train_anywhere.data.torch import random_states
from train_anywhere.errors import CheckpointError, ProjectError
from train_anywhere.training.lightning.checkpoint.shards import ShardPlanner, ShardReader
from train_anywhere.training.lightning.checkpoint.state import FILE, METADATA
from train_anywhere.training.lightning.dropin.trainable import KEY, restore_groups, set_flags, trainable_state
from train_anywhere.training.lightning.dropin.validated_weights import (
    with_training_weights,
    with_validated_weights,
)
from train_anywhere.training.lightning.loop.private import _CheckpointConnector


class Restorer(_CheckpointConnector):
    """Lightning's checkpoint connector, which always reads with `weights_only=True` here.

    Lightning does not pass `weights_only` on for some strategies.

    Attributes:
        completes: give on_load_checkpoint the new module's values for the entries that were left out of the checkpoint.
    """

    def __init__(self, trainer: pl.Trainer, completes: bool) -> None:
        super().__init__(trainer)
        self.completes = completes
        self._trainable: dict[str, Any] = {}

    def take_trainable(self) -> dict[str, Any]:
        """Return the trainable state of the checkpoint, once, when the start hooks have been called."""
        taken, self._trainable = self._trainable, {}
        return taken

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
                self._trainable = self._loaded_checkpoint.get(KEY, {})
                set_flags(self.trainer.lightning_module, self._trainable)
                restore_groups(self.trainer.lightning_module, self.trainer.optimizers, self._trainable)
                if self._loaded_checkpoint:
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
        """Read the checkpoint. Training continues from the training weights."""
        super().resume_start(checkpoint_path, weights_only)
        if checkpoint_path and self.trainer.state.fn == TrainerFn.FITTING:
            with_training_weights(self._loaded_checkpoint)

    def restore_callbacks(self) -> None:
        """Restore callbacks for training only: in a test one could replace the weights."""
        if self.trainer.state.fn == TrainerFn.FITTING:
            super().restore_callbacks()


def add_left_out(checkpoint: dict[str, Any], module: pl.LightningModule) -> None:
    """Add the entries of on_save_checkpoint that `checkpoint.other_objects` left out."""
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


WEIGHTS = "state_dict"
"""Key of the weights, in whole and in sharded checkpoints."""


def read_checkpoint(folder: Path, mmap: bool = False) -> dict[str, Any]:
    """Return the content of a checkpoint, with whole tensors on the CPU in its `state_dict`.

    With `mmap`, tensors stay in the file until they are used. Raises CheckpointError for a damaged file, or one with other objects.
    """
    file = folder / FILE
    with as_checkpoint_error(file):
        refuse_compressed(file)
        state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True, mmap=mmap)
        if (folder / METADATA).exists():
            state[WEIGHTS] = _read_shards(folder)
        if not isinstance(state.get(WEIGHTS), dict):
            raise CheckpointError(f"{file} holds no weights.")
        return state


class StoredWeights:
    """The weights in a checkpoint folder, each of which is read when it is needed.

    Raises:
        CheckpointError: the checkpoint is damaged, or holds more than tensors and numbers.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._whole = folder, None
        if (folder / METADATA).exists():
            known = _tensors(ShardReader(folder).read_metadata())
            self.shapes = {name: tuple(entry.size) for name, entry in known.items()}
        else:
            self._whole = read_checkpoint(folder, mmap=True)[WEIGHTS]
            tensors = ((n, t) for n, t in self._whole.items() if isinstance(t, Tensor))
            self.shapes = {name: tuple(tensor.shape) for name, tensor in tensors}

    def read(self, name: str) -> Tensor:
        """Return one weight, whole. Raises CheckpointError if its shards are damaged."""
        if self._whole is not None:
            tensor: Tensor = self._whole[name]
            return tensor
        with as_checkpoint_error(self._folder):
            return _read_shards(self._folder, name)[name]


def _read_shards(folder: Path, name: str | None = None) -> dict[str, Tensor]:
    """Return one weight, or all of them, from the shards of all ranks."""
    reader = ShardReader(folder)
    wanted = {n: e for n, e in _tensors(reader.read_metadata()).items() if name in (None, n)}
    stored = sum(file.stat().st_size for file in folder.glob("*.distcp"))
    if sum(m.size.numel() * m.properties.dtype.itemsize for m in wanted.values()) > stored:
        raise CheckpointError(f"{folder / METADATA} names more weights than its files hold; it is not read.")
    weights = {name: torch.empty(m.size, dtype=m.properties.dtype) for name, m in wanted.items()}
    with warnings.catch_warnings():
        # reading in one process is intended
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp.load({WEIGHTS: weights}, storage_reader=reader, planner=ShardPlanner(), no_dist=True)
    return weights


def _tensors(metadata: Metadata) -> dict[str, TensorStorageMetadata]:
    start = f"{WEIGHTS}."
    return {
        name.removeprefix(start): entry
        for name, entry in metadata.state_dict_metadata.items()
        if name.startswith(start) and isinstance(entry, TensorStorageMetadata)
    }
