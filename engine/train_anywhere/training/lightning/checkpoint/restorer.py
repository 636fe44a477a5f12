"""Read the weights of a checkpoint in one process."""

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint import Metadata, TensorStorageMetadata

from train_anywhere.errors import CheckpointError
from train_anywhere.files.copy_files import refuse_compressed
from train_anywhere.training.lightning.checkpoint.load_errors import as_checkpoint_error
from train_anywhere.training.lightning.checkpoint.shards import METADATA, ShardPlanner, ShardReader
from train_anywhere.training.lightning.checkpoint.state import FILE

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
