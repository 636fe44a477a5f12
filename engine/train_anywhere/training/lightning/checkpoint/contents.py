"""The files of a checkpoint: one with a copy of the state, limited to plain values, and of a split model the shards of all ranks.

Shards have the format of torch.distributed.checkpoint. Reading runs no code, and raises CheckpointError for a damaged file.
"""

import io
import os
import pickle
import shutil
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from copy import deepcopy
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, distributed, dtype, futures
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.storage import WriteResult

from train_anywhere.checkpoints.checkpointer import StateLostError
from train_anywhere.checkpoints.disk.manifest import copy_file, list_files
from train_anywhere.errors import CheckpointError, ProjectError
from train_anywhere.files.copy_files import find_disk_error, print_line, refuse_compressed
from train_anywhere.files.removal import MARKER, OwnedFolder, make_empty, make_owned, remove

FILE = "model.ckpt"
"""Lightning's file in a checkpoint folder: weights, optimizer, schedule, loops, random states."""

WEIGHTS = "state_dict"
"""Key of the weights, in whole and in sharded checkpoints."""

Key = tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype]
"""Address, shape, strides and type of a tensor. Tensors with the same key, such as tied weights, share one copy."""


class Buffers:
    """Memory for one copy of the state, which all checkpoints reuse.

    Allocating new memory would cost more than the copy itself, because the system must first provide each page.
    """

    def __init__(self) -> None:
        self._buffers: list[Tensor] = []
        self._state: Any = None
        self._copied: torch.cuda.Event | None = None

    def fill(self, state: Any) -> None:
        """Copy all tensors in a tree of dicts, lists and tuples. Other leaves must not change.

        Copies from a GPU are queued after the current step and before the next one. The host does not wait for them.
        """
        tensors: list[Tensor] = []
        apply_to_collection(state, Tensor, tensors.append)
        used: dict[Key, Tensor] = {}
        copies: dict[int, Any] = {}
        free = iter(self._buffers)
        for tensor in tensors:
            key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
            if key not in used:
                buffer = next(free, None)
                if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
                    buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
                used[key] = buffer.copy_(tensor.detach(), non_blocking=True)
            copies[id(tensor)] = used[key]
        self._buffers = [*used.values()]
        # keeps the layer versions that torch attaches to a state dict
        self._state = deepcopy(state, copies)
        if torch.cuda.is_initialized():
            self._copied = torch.cuda.Event()
            self._copied.record()

    def write(self, file: Path) -> None:
        """Save the copy for `torch.load`. Any thread may call this until `fill`. Raises OSError."""
        if self._copied:
            self._copied.synchronize()
        try:
            with open(file, "wb") as opened:  # torch itself would hide the reason why it can't write
                torch.save(self._state, opened)
        except RuntimeError as error:
            raise find_disk_error(error) or error from None


SCALARS = (int, float, complex, str, bool, bytes, type(None), Tensor, dtype)

OPTIONAL = ("hyper_parameters", "datamodule_hyper_parameters", "callbacks")
"""Keys of a checkpoint whose single entries may be missing when it is read."""

NEEDED = ("epoch", "global_step", "optimizer_states", "lr_schedulers")
"""Keys of a checkpoint without which training can't resume."""

TRUSTED = ("state_dict", "loops", "rank_states", "trained", "training_weights")
"""Keys that Lightning or this project writes, always with plain values."""


class NotPlain(Exception):
    """A value that a checkpoint can't hold. The message gives its place and type."""


def keep_plain_values(
    checkpoint: dict[str, Any], report: Callable[[str], None], refuses: bool = False
) -> dict[str, Any]:
    """Return the checkpoint without the values that could not be read again, and report them.

    Raises CheckpointError if training needs one, or with `refuses` (`checkpoint.other_objects=refuse`) for one of a user's hook.
    """
    kept = {key: value for key, value in checkpoint.items() if key in TRUSTED}
    for key, value in checkpoint.items():
        if key in TRUSTED:
            continue
        in_parts = key in OPTIONAL and isinstance(value, Mapping)
        owner = kept.setdefault(key, {}) if in_parts else kept
        for name, one in value.items() if in_parts else [(key, value)]:
            try:
                owner[name] = _to_plain(one, f"{key}.{name}" if in_parts else key)
            except NotPlain as error:
                if not in_parts and (refuses or key in NEEDED):
                    fix = "; save its state_dict(), or use checkpoint.other_objects=leave_out"
                    raise CheckpointError(
                        f"a checkpoint can't hold {error}: it may hold only tensors, numbers, strings, lists and dicts, because "
                        f"reading anything else could run code{'' if key in NEEDED else fix}."
                    ) from error
                report(
                    f"left out of the checkpoints: {error}, which could not be read again without running code."
                )
    return kept


def _to_plain(value: Any, path: str) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if type(value) in SCALARS or isinstance(value, Tensor):
        return value
    if isinstance(value, Mapping):
        return {_to_plain(k, path): _to_plain(v, f"{path}.{k}") for k, v in value.items()}
    if type(value) in (list, tuple, set):
        return type(value)(_to_plain(v, path) for v in value)
    raise NotPlain(f"{path} (a {type(value).__module__}.{type(value).__qualname__})")


METADATA = ".metadata"
"""The file in a sharded checkpoint that lists which weights are in which shard."""

_DCP = "torch.distributed.checkpoint"
_ENTRIES = ("Metadata", "MetadataIndex", "StorageMeta", "TensorStorageMetadata", "BytesStorageMetadata",
            "ChunkStorageMetadata", "TensorProperties", "_MEM_FORMAT_ENCODING")  # fmt: skip
CLASSES = {
    *((f"{_DCP}.metadata", name) for name in _ENTRIES),
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


class ShardReader(dcp.FileSystemReader):
    """Reads the shards in one folder and no file outside of it.

    Raises CheckpointError if its `.metadata` is damaged, or names other classes or files of another folder.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        try:
            self._metadata: dcp.Metadata = _Unpickler(io.BytesIO((folder / METADATA).read_bytes())).load()
            if not _is_plain(self._metadata):
                raise ValueError("other entries")
        except Exception as error:  # a damaged pickle raises nearly anything
            raise CheckpointError(
                f"{folder / METADATA} does not say which tensors are in which file of its folder ({error!r}); it is not read, because "
                "that could run code. Move its folder away to resume from the checkpoint before it."
            ) from error

    def read_metadata(self, *args: Any, **kwargs: Any) -> dcp.Metadata:
        """Return which tensor is in which shard."""
        self._metadata.storage_meta = StorageMeta(load_id=self.load_id)
        return self._metadata


def _is_plain(metadata: dcp.Metadata) -> bool:
    """Return whether all entries have torch's types, and are in the checkpoint's own folder. May raise any error."""
    entries, places = metadata.state_dict_metadata.values(), metadata.storage_data.values()
    return all(isinstance(entry, TensorStorageMetadata | BytesStorageMetadata) for entry in entries) and all(
        place.relative_path.endswith(".distcp")
        and "/" not in place.relative_path
        and not place.transform_descriptors
        and min(place.offset, place.length) >= 0
        for place in places
    )


class ShardPlanner(dcp.DefaultLoadPlanner):
    """Reads entries other than tensors, such as a learning rate, as plain values."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Read an entry. Raises pickle.UnpicklingError if it is not a plain value."""
        *path, last = self.mappings[read_item.dest_index.fqn]
        inner: Any = reduce(getitem, path, self.original_state_dict)
        inner[last] = torch.load(value, weights_only=True)


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
    except (Exception, dcp.CheckpointException) as error:
        cause: BaseException = error
        if isinstance(error, dcp.CheckpointException):  # of all ranks
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


class ShardWriter(dcp.FileSystemWriter):
    """Writes shards to a shared disk as whole files. torch's tensor by tensor is slow there.

    If the node's disk fails, the shards are written directly into the run folder.

    Args:
        folder: the shared folder for the shards of all ranks.
        local: this rank's folder on the node's disk; None: write directly into `folder`.
    """

    def __init__(self, folder: Path, local: OwnedFolder | None) -> None:
        # on a GPU, copies go into the same pinned memory each time
        super().__init__(folder, cache_staged_state_dict=torch.cuda.is_initialized())
        self.folder, self.local = folder, local

    def write_data(self, plan: dcp.SavePlan, planner: dcp.SavePlanner) -> futures.Future[list[WriteResult]]:
        """Write this rank's part. Raises OSError if the shared disk fails."""
        written = None
        if self.local:
            try:
                make_empty(self.local, private=True)
                self.path = self.local.path
                written = super().write_data(plan, planner)
            except Exception as error:
                if not (trouble := find_disk_error(error)):
                    raise
                print_line(
                    f"can't write a part of a checkpoint to {self.local.path} ({trouble.strerror or trouble}); writing to the run "
                    "folder instead."
                )
            finally:
                self.path = self.folder
            for name in list_files(self.local.path) if written else ():
                copy_file(self.local.path / name, self.folder / name)
            remove(self.local)
        return written or super().write_data(plan, planner)


class Shards:
    """Writes this rank's part of a checkpoint to the node's disk, then into the run folder.

    A thread writes a copy of the state; the threads of all ranks communicate over their own process group. All ranks must call the
    constructor together, with the run's checkpoint folder; `local` is as for `ShardWriter`.
    """

    def __init__(self, checkpoints: Path, local: OwnedFolder | None = None) -> None:
        # otherwise Gloo connects each rank with all others, which takes many minutes for thousands of ranks, and writing only needs
        # connections with rank 0, see https://github.com/pytorch/pytorch/pull/150801
        os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")
        self._group = distributed.new_group(backend="gloo")
        run = checkpoints.parent
        self._place = OwnedFolder(run, (checkpoints.name, "shards"), f"shards of run {run.name}")
        self._writer = ShardWriter(self._place.path, local)
        self._written: Future[Any] | None = None

    def write(self, state: dict[str, Any]) -> None:
        """Take weights and optimizer out of the state, and write them. All ranks call this, after `wait`."""
        # the threads of the other ranks write after they have heard from that of rank 0
        if distributed.get_rank() == 0:
            self.clear()
            make_owned(self._place)
        shards = {"state_dict": state.pop("state_dict"), "optimizer": state.pop("optimizer_states")[0]}
        written = dcp.async_save(shards, storage_writer=self._writer, process_group=self._group)
        assert isinstance(written, Future)
        self._written = written

    def wait(self) -> str | None:
        """Wait until all ranks have written. Return the disk error. Raises CheckpointError for another reason."""
        error = self._written.exception() if self._written else None
        if error is None:
            return None
        failures = error.failures if isinstance(error, dcp.CheckpointException) else {}
        for rank, (cause, _) in failures.items():
            if isinstance(cause, OSError):
                return f"rank {rank} can't write its part of a checkpoint to {self._place.path}: {cause}"
        raise CheckpointError(f"a checkpoint could not be written: {error!r}") from error

    def link(self, folder: Path) -> None:
        """Link all parts into the folder of a checkpoint, when all ranks have written them.

        Raises StateLostError if a rank's disk has failed, OSError if the run folder can't be written.
        """
        if lost := self.wait():
            raise StateLostError(lost)
        for shard in (p for p in self._place.path.iterdir() if p.name != MARKER):
            try:
                os.link(shard, folder / shard.name)
            except OSError:  # the file system has no hard links
                shutil.copyfile(shard, folder / shard.name)

    def clear(self) -> None:
        """Remove the folder with shards. Only rank 0 calls this."""
        remove(self._place)
