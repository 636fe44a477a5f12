"""The DataLoader of a training that is stopped by signals and goes on with the same random numbers."""

import multiprocessing
import signal
from multiprocessing import util

import torch

from src.config.schema import Config
from src.data.base import ImageSet
from src.data.order import BatchOrder
from src.data.torch_loader import BatchLoader, torch_loader
from src.distributed.topology import Topology
from src.training.stop import SIGNALS


def make_loader(
    config: Config, split: ImageSet, topology: Topology, train: bool = False, start: tuple[int, int] = (0, 0)
) -> BatchLoader:
    """This rank's batches, see `torch_loader`.

    Args:
        start: epoch and batch to begin with, both from 0.
    """
    order = BatchOrder(config.data.batch_size, config.seed, topology.rank, topology.world_size, train)
    epoch, batch = start
    loader = torch_loader(split, order, workers=config.data.workers, start_epoch=epoch, start_batch=batch)
    # It draws a number whenever it starts, but not from those of the model: an epoch that is gone on with
    # starts twice.
    loader.generator = torch.Generator()
    loader.worker_init_fn = leave_signals_to_the_trainer
    return loader


def leave_signals_to_the_trainer(worker: int) -> None:
    """Ctrl-C and Slurm signal all processes; the workers are needed until the training has stopped."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def end_workers() -> None:
    """End the workers that are left when the process ends: Python would send them SIGTERM, which they ignore, and wait."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler takes their end for a crash
    for worker in multiprocessing.active_children():
        if worker.daemon:
            worker.kill()


util.Finalize(None, end_workers, exitpriority=100)  # runs before Python waits for its children
