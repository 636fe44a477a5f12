"""Checkpoints of sharded training: each rank writes its part in the background."""

import io
import os
import pickle
import re
import shutil
from concurrent.futures import Future
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import distributed, futures
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint import (
    DefaultLoadPlanner,
    FileSystemReader,
    FileSystemWriter,
    Metadata,
    SavePlan,
    SavePlanner,
)
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    MetadataIndex,
    StorageMeta,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.storage import WriteResult

from train_anywhere.checkpoints.disk.manifest import copy_file, list_files
from train_anywhere.errors import CheckpointError
from train_anywhere.files.copy_files import find_disk_error, print_line
from train_anywhere.files.removal import MARKER, OwnedFolder, make_empty, make_owned, remove

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
        *path, last = self.mappings[read_item.dest_index.fqn]
        inner: Any = reduce(getitem, path, self.original_state_dict)
        inner[last] = torch.load(value, weights_only=True)


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
    """Return whether all entries have torch's types, and are in the checkpoint's own folder."""
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


def _inside(place: Any) -> bool:
    return (
        isinstance(getattr(place, "relative_path", None), str)
        and place.relative_path.endswith(".distcp")
        and "/" not in place.relative_path
        and not getattr(place, "transform_descriptors", None)
        and all(isinstance(number, int) and number >= 0 for number in (place.offset, place.length))
    )


class ShardWriter(FileSystemWriter):
    """Writes shards to a shared disk as whole files. torch's tensor by tensor is slow there.

    If the node's disk fails, the shards are written directly into the run folder.

    Args:
        folder: the shared folder for the shards of all ranks.
        local: this rank's folder on the node's disk; None: write directly into `folder`.
    """

    def __init__(self, folder: Path, local: OwnedFolder | None) -> None:
        super().__init__(folder)
        self.folder, self.local = folder, local

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> futures.Future[list[WriteResult]]:
        """Write this rank's part. Raises OSError if the shared disk fails."""
        written = self._write_locally(self.local, plan, planner) if self.local else None
        if not written or not self.local:
            return super().write_data(plan, planner)
        for name in list_files(self.local.path):
            copy_file(self.local.path / name, self.folder / name)
        remove(self.local)
        return written

    def _write_locally(
        self, local: OwnedFolder, plan: SavePlan, planner: SavePlanner
    ) -> futures.Future[list[WriteResult]] | None:
        """Write to the node's disk. If that fails, print a line and return None."""
        try:
            make_empty(local, private=True)
            self.path, self.sync_files = local.path, False
            return super().write_data(plan, planner)
        except Exception as error:
            trouble = find_disk_error(error)
            if not trouble:
                raise
            remove(local)
            print_line(
                f"can't write a part of a checkpoint to {local.path} ({trouble.strerror or trouble}); writing to the run folder instead."
            )
            return None
        finally:
            self.path, self.sync_files = self.folder, True


PREFIX = "shards-"
"""Start of the names of the folders with shards, next to the checkpoints; the step follows."""

STAGER_IS_REUSABLE = torch.__version__ >= "2.13"
"""Whether torch's stager can copy several states into the same memory; before 2.13 a stager works once."""


def make_stager() -> DefaultStager:
    """Return a stager that copies a state into host memory, synchronously."""
    gpu = torch.cuda.is_initialized()
    return DefaultStager(
        StagingOptions(
            use_pinned_memory=gpu,
            use_shared_memory=False,
            use_async_staging=False,
            use_non_blocking_copy=gpu,
        )
    )


LAZY_INIT = "TORCH_GLOO_LAZY_INIT"
"""Environment variable for lazy connections of Gloo, see https://github.com/pytorch/pytorch/pull/150801; `new_group` has no argument."""


def make_lazy_group() -> Any:
    """Return a process group of all ranks that connect when they first exchange data.

    By default Gloo connects each rank with all others, which takes many minutes for thousands of ranks.
    Writing shards only needs connections with rank 0.
    """
    was_set = LAZY_INIT in os.environ
    os.environ.setdefault(LAZY_INIT, "1")
    try:
        return distributed.new_group(backend="gloo")
    finally:
        if not was_set:
            del os.environ[LAZY_INIT]


class Shards:
    """Writes this rank's part of a checkpoint to the node's disk, then into the run folder.

    The state is copied into memory that is reused for each checkpoint. A thread writes it; the threads of all ranks
    communicate over their own process group. All ranks must call the constructor together.

    Args:
        checkpoints: the checkpoint folder of the run, the same for all ranks.
        local: this rank's folder on the node's disk; None: write directly into the run folder.
    """

    def __init__(self, checkpoints: Path, local: OwnedFolder | None = None) -> None:
        self._stager = make_stager()
        self._group = make_lazy_group()
        self._checkpoints, self._folder, self._local = checkpoints, checkpoints, local
        self._written: Future[Any] | None = None

    def write(self, state: dict[str, Any], step: int) -> None:
        """Take weights and optimizer out of the state, and write them. All ranks call this."""
        self._folder = self._checkpoints / f"{PREFIX}{step:08d}"
        if distributed.get_rank() == 0:
            make_owned(self._place(self._folder))
        shards = {"state_dict": state.pop("state_dict"), "optimizer": state.pop("optimizer_states")[0]}
        written = dcp.async_save(
            shards,
            storage_writer=ShardWriter(self._folder, self._local),
            process_group=self._group,
            async_stager=self._stager if STAGER_IS_REUSABLE else make_stager(),
        )
        assert isinstance(written, Future)
        self._written = written

    @property
    def is_writing(self) -> bool:
        """Whether this rank's thread is still writing."""
        return self._written is not None and not self._written.done()

    def wait(self) -> str | None:
        """Wait until all ranks have written. Return the disk error.

        Raises:
            CheckpointError: writing failed for another reason, which is chained.
        """
        error = self._written.exception() if self._written else None
        if error is None:
            return None
        failures = error.failures if isinstance(error, dcp.CheckpointException) else {}
        for rank, (cause, _) in failures.items():
            if isinstance(cause, OSError):
                return f"rank {rank} can't write its part of a checkpoint to {self._folder}: {cause}"
        raise CheckpointError(f"a checkpoint could not be written: {error!r}") from error

    def link(self, folder: Path) -> None:
        """Link all parts into the folder of a checkpoint. Raises OSError."""
        for shard in (p for p in self._folder.iterdir() if p.name != MARKER):
            try:
                os.link(shard, folder / shard.name)
            except OSError:  # the file system has no hard links
                shutil.copyfile(shard, folder / shard.name)

    def clear(self) -> None:
        """Remove all folders with shards. One rank calls this, before its own `write`.

        No other rank is ahead of it: each thread creates its folder, then waits for the threads of all ranks.
        """
        for folder in self._checkpoints.glob(f"{PREFIX}*"):
            if re.fullmatch("[0-9]{8,}", folder.name.removeprefix(PREFIX)):
                remove(self._place(folder))

    def _place(self, folder: Path) -> OwnedFolder:
        run = self._checkpoints.parent
        return OwnedFolder(run, (self._checkpoints.name, folder.name), f"{folder.name} of run {run.name}")
