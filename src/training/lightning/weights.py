"""The weights in a checkpoint, whole or in shards, read by one process without running what the files hold."""

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint import Metadata, TensorStorageMetadata

from src.checkpoints.plain_zip import refuse_compressed
from src.errors import CheckpointError
from src.training.lightning.checkpoint import FILE, METADATA
from src.training.lightning.restoring import one_sentence
from src.training.lightning.shard_reader import ShardPlanner, ShardReader

WEIGHTS = "state_dict"
"""Key of the weights, in both kinds of checkpoint."""


def read_checkpoint(folder: Path) -> dict[str, Any]:
    """What the file of a checkpoint holds; `state_dict` has whole tensors on the CPU, also of a sharded run.

    Raises:
        CheckpointError: it is damaged, or holds more than tensors and numbers.
    """
    file = folder / FILE
    with one_sentence(file):
        refuse_compressed(file)
        state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
        if (folder / METADATA).exists():
            state[WEIGHTS] = _gathered(folder)
        if not isinstance(state.get(WEIGHTS), dict):
            raise CheckpointError(f"{file} holds no weights.")
        return state


def _gathered(folder: Path) -> dict[str, Tensor]:
    """The shards of all ranks, put together."""
    reader = ShardReader(folder)
    wanted = _tensors(reader.read_metadata())
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
