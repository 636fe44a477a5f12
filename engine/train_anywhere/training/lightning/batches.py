"""This rank's batches of one part of the data; loading processes outlive the signals that stop a training."""

import multiprocessing
import signal
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import util
from typing import Any, Protocol

import torch

from train_anywhere.data.torch.arrays import to_arrays, to_tensors
from train_anywhere.data.torch.loader import Batch, Batches, torch_loader
from train_anywhere.data.torch.samples import Prepare
from train_anywhere.data.torch.user_loader import Stream
from train_anywhere.training.stop import SIGNALS


class Part(Protocol):
    """Training, validation or test."""

    def __len__(self) -> int:
        """Batches of an epoch, of every rank."""
        ...

    def loader(self, start: tuple[int, int] = (0, 0)) -> Any:
        """Batches from an epoch and a batch on, both from 0."""
        ...


@dataclass(frozen=True)
class OwnOrder:
    """A data set that is read in our own order.

    Attributes:
        batches: this rank's, by epoch and number.
        workers: processes that load.
        starts: called in each of them, as the user's own loader would.
    """

    batches: Batches
    workers: int
    starts: Callable[[int], None] | None = None

    def __len__(self) -> int:
        return len(self.batches)

    def loader(self, start: tuple[int, int] = (0, 0)) -> Any:
        """See Part."""
        epoch, batch = start
        loader = torch_loader(self.batches, workers=self.workers, start_epoch=epoch, start_batch=batch)
        # It draws a number whenever it starts. A resumed epoch starts twice, so this must not come from the model's numbers.
        loader.generator = torch.Generator()
        loader.worker_init_fn = Starting(self.starts)
        return loader


@dataclass(frozen=True)
class OtherOrder:
    """A loader that decides itself what it gives.

    Attributes:
        source: the loader.
        count: batches of an epoch; of an evaluation at most.
        seed, rank: for its random numbers.
        train: whether it must give as many.
        weighs: for a native task: each row weighs 1.
        prepare: of the task.
    """

    source: Any
    count: int
    seed: int
    rank: int
    train: bool
    weighs: bool
    prepare: Prepare = None

    def __len__(self) -> int:
        return self.count

    def loader(self, start: tuple[int, int] = (0, 0)) -> Any:
        """See Part."""
        source = Weighed(self.source, self.prepare) if self.weighs else self.source
        return Stream(source, self.seed, self.rank, self.count if self.train else None, start)


@dataclass(frozen=True)
class Several:
    """Loaders that are evaluated one after another, as Lightning does with a list of them."""

    parts: list[Part]

    def __len__(self) -> int:
        return max(len(part) for part in self.parts)

    def loader(self, start: tuple[int, int] = (0, 0)) -> Any:
        """See Part."""
        return [part.loader(start) for part in self.parts]


class Weighed:
    """A loader whose batches are given to a native task; anything else is asked of the loader itself."""

    def __init__(self, loader: Any, prepare: Prepare) -> None:
        self.inner, self.prepare = loader, prepare

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __iter__(self) -> Any:
        for rows in self.inner:
            prepared = to_tensors(self.prepare(to_arrays(rows))) if self.prepare else rows
            yield Batch(prepared, torch.ones(_rows(prepared)))


def _rows(tree: Any) -> int:
    """Of the first tensor."""
    while not isinstance(tree, torch.Tensor):
        tree = next(iter(tree.values() if isinstance(tree, dict) else tree))
    return len(tree)


@dataclass(frozen=True)
class Starting:
    """What a loading process does first."""

    starts: Callable[[int], None] | None

    def __call__(self, worker: int) -> None:
        """In worker number `worker`."""
        leave_signals_to_the_trainer(worker)
        if self.starts:
            self.starts(worker)


def leave_signals_to_the_trainer(worker: int) -> None:
    """Ctrl-C and Slurm signal all processes, and the workers are needed until the training has stopped."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def end_workers() -> None:
    """Kill the workers that are left when the process ends: Python would send SIGTERM, which they ignore, and wait."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler takes their end for a crash
    for worker in multiprocessing.active_children():
        if worker.daemon:
            worker.kill()


util.Finalize(None, end_workers, exitpriority=100)  # runs before Python waits for its children
