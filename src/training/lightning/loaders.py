"""This rank's batches; loading processes outlive the signals that stop a training."""

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


def training_data(config: Config, split: ImageSet, topology: Topology, start: tuple[int, int]) -> BatchLoader:
    """Batches from a position on, shuffled and augmented.

    Args:
        start: epoch and batch to begin with, both from 0.
    """
    return _loader(config, split, topology, True, start)


def evaluation_data(config: Config, split: ImageSet, topology: Topology) -> BatchLoader:
    """Batches in their own order."""
    return _loader(config, split, topology, False, (0, 0))


def _loader(
    config: Config, split: ImageSet, topology: Topology, train: bool, start: tuple[int, int]
) -> BatchLoader:
    order = BatchOrder(config.data.batch_size, config.seed, topology.rank, topology.world_size, train)
    epoch, batch = start
    loader = torch_loader(split, order, workers=config.data.workers, start_epoch=epoch, start_batch=batch)
    # It draws a number whenever it starts. A resumed epoch starts twice, so this must not come from the model's numbers.
    loader.generator = torch.Generator()
    loader.worker_init_fn = leave_signals_to_the_trainer
    return loader


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
