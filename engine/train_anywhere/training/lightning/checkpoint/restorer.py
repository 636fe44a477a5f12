"""Read the weights of a checkpoint in one process; errors at a damaged one, or one of another model."""

import pickle
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint import TensorStorageMetadata
from torch.distributed.checkpoint.api import CheckpointException

from train_anywhere.errors import CheckpointError, ProjectError
from train_anywhere.files.copy_files import refuse_compressed
from train_anywhere.training.lightning.checkpoint.shards import METADATA, ShardPlanner, ShardReader

FILE = "model.ckpt"
"""Lightning's file in a checkpoint folder: weights, optimizer, schedule, loops, random states."""

WEIGHTS = "state_dict"
"""Key of the weights, in whole and in sharded checkpoints."""


def read_checkpoint(folder: Path, mmap: bool = False, unread: Collection[str] = ()) -> dict[str, Any]:
    """Return the content of a checkpoint, with whole tensors on the CPU in its `state_dict`.

    With `mmap`, tensors stay in the file until they are used. Of the weights in `unread` only the shape is needed: those of shards are
    on the device "meta". Raises CheckpointError for a damaged file, or one with other objects.
    """
    file = folder / FILE
    with as_checkpoint_error(file):
        refuse_compressed(file)
        state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True, mmap=mmap)
        if (folder / METADATA).exists():
            state[WEIGHTS] = _read_shards(folder, unread)
        if not isinstance(state.get(WEIGHTS), dict):
            raise CheckpointError(f"{file} holds no weights.")
        return state


def _read_shards(folder: Path, unread: Collection[str]) -> dict[str, Tensor]:
    """Return the weights from the shards of all ranks."""
    reader, start = ShardReader(folder), f"{WEIGHTS}."
    entries = {
        name.removeprefix(start): entry
        for name, entry in reader.read_metadata().state_dict_metadata.items()
        if name.startswith(start) and isinstance(entry, TensorStorageMetadata)
    }
    stored = sum(file.stat().st_size for file in folder.glob("*.distcp"))
    if sum(e.size.numel() * e.properties.dtype.itemsize for e in entries.values()) > stored:
        raise CheckpointError(f"{folder / METADATA} names more weights than its files hold; it is not read.")
    weights = {
        name: torch.empty(e.size, dtype=e.properties.dtype, device="meta" if name in unread else None)
        for name, e in entries.items()
    }
    with warnings.catch_warnings():
        # reading in one process is intended
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        read = {WEIGHTS: {name: tensor for name, tensor in weights.items() if name not in unread}}
        dcp.load(read, storage_reader=reader, planner=ShardPlanner(), no_dist=True)
    return weights


@contextmanager
def as_checkpoint_error(path: object) -> Iterator[None]:
    """Turn any error of torch or Lightning at an unexpected file into a CheckpointError."""
    try:
        yield
    except ProjectError:
        raise
    except (Exception, CheckpointException) as error:
        cause: BaseException = error
        if isinstance(error, CheckpointException):  # of all ranks
            cause = next(one for one, _ in error.failures.values())
        if isinstance(cause, ProjectError):
            raise cause from error
        away = "Move its folder away to resume from the checkpoint before it."
        lines = [line.strip() for line in str(cause).strip().splitlines()] or [type(cause).__name__]
        if isinstance(cause, pickle.UnpicklingError):
            why = f"is damaged, or holds more than tensors and numbers; it is not read, because that could run code. {away}"
        elif "loading state_dict" in str(cause):
            why = f"holds the weights of another model: {' '.join(lines[1:])} Use the code and the configuration that wrote it."
        else:
            why = f"can't be resumed: {lines[0]} It is damaged, or was written with another model or version. {away}"
        raise CheckpointError(f"{path} {why}") from error
