"""Loading processes that ignore the signals which stop training."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing import util
from typing import Any

from lightning.fabric.utilities.seed import pl_worker_init_function
from torch.utils.data import DataLoader

from train_anywhere.job.rank_process import SIGNALS


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


def protect_workers(loader: Any, rank: int) -> None:
    """Let the workers of a user's loader ignore stop signals, which Slurm sends to them too."""
    if not isinstance(loader, DataLoader) or not loader.num_workers:
        return
    inner = loader.worker_init_fn
    if inner is None and int(
        os.environ.get("PL_SEED_WORKERS", 0)
    ):  # Lightning seeds only workers without a function
        inner = partial(pl_worker_init_function, rank=rank)
    if not isinstance(inner, WorkerInit):
        loader.worker_init_fn = WorkerInit(inner)


def kill_workers() -> None:
    """Kill the remaining workers at exit. Python would wait for them, since they ignore SIGTERM."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would report a crash
    for worker in multiprocessing.active_children():
        if worker.daemon:
            worker.kill()


util.Finalize(None, kill_workers, exitpriority=100)  # runs before Python waits for its children
