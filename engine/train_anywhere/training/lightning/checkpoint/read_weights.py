"""The weights in a checkpoint, whole or in shards, read by one process without running what the files hold."""

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint import Metadata, TensorStorageMetadata

from train_anywhere.checkpoints.disk.plain_zip import refuse_compressed
from train_anywhere.errors import CheckpointError
from train_anywhere.training.lightning.checkpoint.restoring import one_sentence
from train_anywhere.training.lightning.checkpoint.shard_reader import ShardPlanner, ShardReader
from train_anywhere.training.lightning.checkpoint.state import FILE, METADATA

WEIGHTS = "state_dict"
"""Key of the weights, in both kinds of checkpoint."""


def read_checkpoint(folder: Path, mmap: bool = False) -> dict[str, Any]:
    """What the file of a checkpoint holds; `state_dict` has whole tensors on the CPU, also of a sharded run.

    Args:
        mmap: leave tensors in the file until they are used.

    Raises:
        CheckpointError: it is damaged, or holds more than tensors and numbers.
    """
    file = folder / FILE
    with one_sentence(file):
        refuse_compressed(file)
        state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True, mmap=mmap)
        if (folder / METADATA).exists():
            state[WEIGHTS] = _gathered(folder)
        if not isinstance(state.get(WEIGHTS), dict):
            raise CheckpointError(f"{file} holds no weights.")
        return state


class Stored:
    """The weights of a checkpoint, each read when it is asked for.

    Args:
        folder: of the checkpoint.

    Attributes:
        shapes: of all of them, by name.

    Raises:
        CheckpointError: it is damaged, or holds more than tensors and numbers.
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
        """One of them, whole. Raises CheckpointError: its shards are damaged."""
        if self._whole is not None:
            tensor: Tensor = self._whole[name]
            return tensor
        with one_sentence(self._folder):
            return _gathered(self._folder, name)[name]


def _gathered(folder: Path, name: str | None = None) -> dict[str, Tensor]:
    """The shards of all ranks, put together; of one weight, or of all."""
    reader = ShardReader(folder)
    wanted = {n: e for n, e in _tensors(reader.read_metadata()).items() if name in (None, n)}
    room = sum(file.stat().st_size for file in folder.glob("*.distcp"))
    if sum(m.size.numel() * m.properties.dtype.itemsize for m in wanted.values()) > room:
        raise CheckpointError(f"{folder / METADATA} names more weights than its files hold; it is not read.")
    weights = {name: torch.empty(m.size, dtype=m.properties.dtype) for name, m in wanted.items()}
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="torch.distributed is disabled"
        )  # one process is what is meant
        dcp.load({WEIGHTS: weights}, storage_reader=reader, planner=ShardPlanner(), no_dist=True)
    return weights


def _tensors(metadata: Metadata) -> dict[str, TensorStorageMetadata]:
    start = f"{WEIGHTS}."
    return {
        name.removeprefix(start): entry
        for name, entry in metadata.state_dict_metadata.items()
        if name.startswith(start) and isinstance(entry, TensorStorageMetadata)
    }
