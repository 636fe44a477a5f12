"""Weights and optimizer of sharded training in checkpoints: each rank writes its part in the background."""

import os
import re
import shutil
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from train_anywhere.checkpoints.disk.writes import say
from train_anywhere.errors import CheckpointError
from train_anywhere.files.marked import MARKER, Place, make
from train_anywhere.files.removal import remove
from train_anywhere.training.lightning.checkpoint.shard_writer import ShardWriter

PREFIX = "shards-"
"""Of the names of their folders, beside the checkpoints; the step follows."""


KEEPS = torch.__version__ >= "2.13"
"""Whether torch's stager can copy a second state, into the memory of the first; those before are used up by one."""


def make_stager() -> DefaultStager:
    """What copies a state into memory of the host, here and now."""
    gpu = torch.cuda.is_initialized()
    return DefaultStager(
        StagingOptions(
            use_pinned_memory=gpu,
            use_shared_memory=False,
            use_async_staging=False,
            use_non_blocking_copy=gpu,
        )
    )


LAZY = "TORCH_GLOO_LAZY_INIT"
"""Torch's variable for it, see https://github.com/pytorch/pytorch/pull/150801; `new_group` has no argument that says it."""


def group_of_few_connections() -> Any:
    """A process group of all ranks; two connect when they first have something to say to each other.

    As it comes, Gloo connects each rank with each other: with thousands of them that takes many minutes. What writes shards gathers to
    rank 0 and is answered from there.
    """
    said = LAZY in os.environ
    os.environ.setdefault(LAZY, "1")
    try:
        return distributed.new_group(backend="gloo")
    finally:
        if not said:
            del os.environ[LAZY]


class Shards:
    """Writes this rank's part of one checkpoint at a time: to the node's disk, then into the run folder that all ranks see.

    The state is copied into memory that is kept from one checkpoint to the next. A thread writes it, and agrees with
    the threads of the other ranks over a process group of their own. All ranks call the constructor together.

    Args:
        checkpoints: folder of the run, the same for all ranks.
        local: a folder of this rank's on the node's disk; None: write straight into the run folder.
    """

    def __init__(self, checkpoints: Path, local: Place | None = None) -> None:
        self._stager = make_stager()
        self._group = group_of_few_connections()
        self._checkpoints, self._folder, self._local = checkpoints, checkpoints, local
        self._written: Future[Any] | None = None

    def write(self, state: dict[str, Any], step: int) -> None:
        """Take weights and optimizer out of the state and begin to write them; all ranks call it, after `wait`."""
        self._folder = self._checkpoints / f"{PREFIX}{step:08d}"
        if distributed.get_rank() == 0:
            make(self._place(self._folder))
        shards = {"state_dict": state.pop("state_dict"), "optimizer": state.pop("optimizer_states")[0]}
        written = dcp.async_save(
            shards,
            storage_writer=ShardWriter(self._folder, self._local, say),
            process_group=self._group,
            async_stager=self._stager if KEEPS else make_stager(),
        )
        assert isinstance(written, Future)
        self._written = written

    @property
    def writing(self) -> bool:
        """Whether this rank's thread is still writing."""
        return self._written is not None and not self._written.done()

    def wait(self) -> str | None:
        """Return when all ranks have written their parts: None, or which disk error lost one.

        Raises:
            CheckpointError: chained to any other error.
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
            except OSError:  # a file system without links
                shutil.copyfile(shard, folder / shard.name)

    def clear(self) -> None:
        """Remove the parts, also those that a killed run left; for one rank, before its own `write`.

        No other rank is ahead: a thread makes its folder, and then waits for those of all ranks.
        """
        for folder in self._checkpoints.glob(f"{PREFIX}*"):
            if re.fullmatch("[0-9]{8,}", folder.name.removeprefix(PREFIX)):
                remove(self._place(folder))

    def _place(self, folder: Path) -> Place:
        run = self._checkpoints.parent
        return Place(run, (self._checkpoints.name, folder.name), f"{folder.name} of run {run.name}")
