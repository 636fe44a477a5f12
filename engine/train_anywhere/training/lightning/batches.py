"""This rank's batches of a split. Loading processes ignore the signals that stop training."""

import multiprocessing
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing import util
from typing import Any

import torch
from torch.utils.data import DataLoader

from train_anywhere.data.torch.arrays import to_arrays, to_tensors
from train_anywhere.data.torch.loader import Batch, Batches, torch_loader
from train_anywhere.data.torch.samples import Prepare
from train_anywhere.data.torch.user_loader import Ranks, Stream
from train_anywhere.training.stop import SIGNALS


@dataclass(frozen=True)
class IndexedSplit:
    """A data set whose rows are read by index, in this project's order.

    Attributes:
        batches: this rank's batches, by epoch and number.
        worker_init: called in each of them, as `worker_init_fn` of a DataLoader.
    """

    batches: Batches
    workers: int
    worker_init: Callable[[int], None] | None = None

    def __len__(self) -> int:
        return len(self.batches)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.batches.reader.dataset)

    def loader(self, start: tuple[int, int] = (0, 0)) -> Any:
        """Return a loader that starts at an epoch and a batch."""
        epoch, batch = start
        loader = torch_loader(self.batches, workers=self.workers, start_epoch=epoch, start_batch=batch)
        # The loader draws a number at each start, and a resumed epoch starts twice: do not draw from the model's generator.
        loader.generator = torch.Generator()
        loader.worker_init_fn = WorkerInit(self.worker_init)
        return loader


@dataclass(frozen=True)
class StreamSplit:
    """A user's loader for a task of this project. Each row gets weight 1.

    Attributes:
        count: batches of an epoch; for an evaluation the maximum.
        seed: seed of its random numbers.
        ranks: this rank, and how it agrees with the others.
        train: whether it must return exactly `count` batches.
    """

    source: Any
    count: int
    seed: int
    ranks: Ranks
    train: bool
    prepare: Prepare = None
    rows: None = None

    def __len__(self) -> int:
        return self.count

    def loader(self, start: tuple[int, int] = (0, 0)) -> Any:
        """Return a loader that starts at an epoch and a batch."""
        source = WeightedLoader(self.source, self.prepare)
        batches = self.count if self.train or self.ranks.world_size > 1 else None
        return Stream(source, self.seed, self.ranks, batches, start, self.train)


@dataclass(frozen=True)
class SeveralSplits:
    """Splits that are evaluated one after another, as Lightning does with a list of loaders."""

    splits: "list[RankSplit]"

    def __len__(self) -> int:
        return max(len(split) for split in self.splits)

    @property
    def rows(self) -> int | None:
        """Number of rows of all loaders together, or None if one is not known."""
        rows = [split.rows for split in self.splits]
        return None if None in rows else sum(filter(None, rows))

    def loader(self, start: tuple[int, int] = (0, 0)) -> Any:
        """Return the loaders, which start at an epoch and a batch."""
        return [split.loader(start) for split in self.splits]


RankSplit = IndexedSplit | StreamSplit | SeveralSplits
"""The data of this rank. Its length is the number of batches in an epoch, the same on every rank."""


class WeightedLoader:
    """A loader with the attributes of another one that adds weights to its batches."""

    def __init__(self, loader: Any, prepare: Prepare) -> None:
        self.inner, self.prepare = loader, prepare

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __iter__(self) -> Any:
        for rows in self.inner:
            prepared = to_tensors(self.prepare(to_arrays(rows))) if self.prepare else rows
            yield Batch(prepared, torch.ones(_rows(prepared)))


def _rows(tree: Any) -> int:
    """Return the number of rows in a batch: the length of its first tensor."""
    while not isinstance(tree, torch.Tensor):
        tree = next(iter(tree.values() if isinstance(tree, dict) else tree))
    return len(tree)


@dataclass(frozen=True)
class WorkerInit:
    """The `worker_init_fn` of a loader: ignores stop signals, then calls the user's function."""

    inner: Callable[[int], None] | None

    def __call__(self, worker: int) -> None:
        """Initialize worker number `worker`."""
        for number in SIGNALS:  # workers are needed until training has stopped
            signal.signal(number, signal.SIG_IGN)
        if self.inner:
            self.inner(worker)


def protect_workers(loaders: Iterable[Any]) -> None:
    """Let the workers of a user's loaders ignore stop signals, which Slurm sends to them too."""
    for loader in loaders:
        if (
            isinstance(loader, DataLoader)
            and loader.num_workers
            and not isinstance(loader.worker_init_fn, WorkerInit)
        ):
            loader.worker_init_fn = WorkerInit(loader.worker_init_fn)


def kill_workers() -> None:
    """Kill the remaining workers at exit. Python would wait for them, since they ignore SIGTERM."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would report a crash
    for worker in multiprocessing.active_children():
        if worker.daemon:
            worker.kill()


util.Finalize(None, kill_workers, exitpriority=100)  # runs before Python waits for its children
