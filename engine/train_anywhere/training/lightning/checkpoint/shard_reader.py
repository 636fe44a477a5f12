"""Read the shards of `torch.distributed.checkpoint` without running code from them.

torch unpickles `.metadata`, and entries that are not tensors, without a check; a pickle can call any function.
Here `.metadata` may name only the plain classes in `CLASSES`, and other entries are read with `weights_only=True`.
"""

import io
import pickle
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner, FileSystemReader, Metadata
from torch.distributed.checkpoint._nested_dict import set_element
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    MetadataIndex,
    StorageMeta,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import ReadItem

from train_anywhere.errors import CheckpointError

_DCP = "torch.distributed.checkpoint"
CLASSES = {
    (f"{_DCP}.metadata", "Metadata"),
    (f"{_DCP}.metadata", "MetadataIndex"),
    (f"{_DCP}.metadata", "StorageMeta"),
    (f"{_DCP}.metadata", "TensorStorageMetadata"),
    (f"{_DCP}.metadata", "BytesStorageMetadata"),
    (f"{_DCP}.metadata", "ChunkStorageMetadata"),
    (f"{_DCP}.metadata", "TensorProperties"),
    (f"{_DCP}.metadata", "_MEM_FORMAT_ENCODING"),
    (f"{_DCP}.filesystem", "_StorageInfo"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),  # a look-up by name: "torch.strided"
    ("pathlib", "PosixPath"),
    *(("torch", str(t).removeprefix("torch.")) for t in vars(torch).values() if isinstance(t, torch.dtype)),
}
"""The classes that `.metadata` consists of; calling one has no side effects."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in CLASSES:
            raise pickle.UnpicklingError(f"{module}.{name}")
        return super().find_class(module, name)


class ShardReader(FileSystemReader):
    """Reads the shards in one folder and no file outside of it.

    Args:
        folder: the folder of the checkpoint.

    Raises:
        CheckpointError: its `.metadata` is damaged, or names other classes or files of another folder.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._metadata = _read(folder / ".metadata")

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return which tensor is in which shard."""
        self._metadata.storage_meta = StorageMeta(load_id=self.load_id)
        return self._metadata


class ShardPlanner(DefaultLoadPlanner):
    """Reads entries other than tensors, such as a learning rate, as plain values."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Read an entry. Raises pickle.UnpicklingError if it is not a plain value."""
        plain = torch.load(value, weights_only=True)
        set_element(self.original_state_dict, self.mappings[read_item.dest_index.fqn], plain)


def _read(path: Path) -> Metadata:
    try:
        metadata = _Unpickler(io.BytesIO(path.read_bytes())).load()
    except Exception as error:  # a damaged pickle raises nearly anything
        raise CheckpointError(
            f"{path} is damaged, or would run code ({error}); it is not read. "
            "Move its folder away to resume from the checkpoint before it."
        ) from error
    if not _plain(metadata):
        raise CheckpointError(
            f"{path} does not say which tensors are in which file of its folder; it is not read. "
            "Move its folder away to resume from the checkpoint before it."
        )
    return metadata


def _plain(metadata: object) -> TypeGuard[Metadata]:
    """Return whether all entries have the types that torch writes, and are in files of the checkpoint's own folder."""
    return (
        isinstance(metadata, Metadata)
        and isinstance(metadata.state_dict_metadata, dict)
        and isinstance(metadata.storage_data, dict)
        and all(
            type(name) is str and isinstance(entry, TensorStorageMetadata | BytesStorageMetadata)
            for name, entry in metadata.state_dict_metadata.items()
        )
        and all(type(i) is MetadataIndex and _inside(place) for i, place in metadata.storage_data.items())
    )


def _inside(place: object) -> bool:
    return (
        isinstance(place, _StorageInfo)
        and isinstance(place.relative_path, str)
        and place.relative_path.endswith(".distcp")
        and "/" not in place.relative_path
        and not getattr(place, "transform_descriptors", None)
        and all(isinstance(number, int) and number >= 0 for number in (place.offset, place.length))
    )
