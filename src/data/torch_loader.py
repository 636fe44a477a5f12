"""A data set as a PyTorch DataLoader of whole batches, in the order of `src.data.order`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from src.data.base import ImageSet
from src.data.batch import check_batch
from src.data.order import batch_rows, steps_per_epoch
from src.errors import DataError

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class StepSampler(Sampler[tuple[int, int]]):
    """The (epoch, step) pairs of one epoch. Workers learn the epoch from the pair, so they can outlive it.

    `len` is always a whole epoch; only `start_epoch`, where a run goes on, begins at `start_step`.
    """

    def __init__(self, steps: int, start_epoch: int = 0, start_step: int = 0) -> None:
        self.steps, self.epoch = steps, start_epoch
        self.start_epoch, self.start_step = start_epoch, start_step

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; Lightning calls this."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[tuple[int, int]]:
        first = self.start_step if self.epoch == self.start_epoch else 0
        return ((self.epoch, step) for step in range(first, self.steps))


@dataclass(frozen=True)
class Batches(Dataset[Batch | DataError]):
    """Maps (epoch, step) to this rank's batch."""

    dataset: ImageSet
    batch_size: int
    seed: int
    rank: int
    world_size: int
    train: bool

    def __getitem__(self, key: tuple[int, int]) -> Batch | DataError:
        """A DataError is returned, not raised: DataLoader would wrap it into the traceback of a worker."""
        epoch, step = key
        indices, weights = batch_rows(
            len(self.dataset), self.batch_size, self.seed, epoch, step, self.rank, self.world_size, self.train
        )
        try:
            images, labels = self.dataset.read(indices, epoch, self.train)
        except DataError as error:
            return error
        channels_first = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
        return channels_first, torch.from_numpy(labels), torch.from_numpy(weights)


class BatchLoader(DataLoader[Any]):
    """A DataLoader that raises the DataError a worker met."""

    def __iter__(self) -> Any:
        """Batches, in order."""
        for batch in super().__iter__():
            if isinstance(batch, DataError):
                raise batch
            yield batch


def torch_loader(
    dataset: ImageSet,
    *,
    batch_size: int,
    seed: int,
    train: bool,
    rank: int = 0,
    world_size: int = 1,
    workers: int = 0,
    start_epoch: int = 0,
    start_step: int = 0,
) -> BatchLoader:
    """Batches of a rank: image float32 [b, C, H, W], label int64 [b], weight float32 [b], b = batch_size / W.

    `batch_size` is that of all ranks together. With `train`, samples are shuffled and augmented. Batches are
    already this rank's: a Trainer needs `use_distributed_sampler=False`. Raises DataError.
    """
    check_batch(len(dataset), batch_size, world_size, train)
    return BatchLoader(
        Batches(dataset, batch_size, seed, rank, world_size, train),
        batch_size=None,
        sampler=StepSampler(steps_per_epoch(len(dataset), batch_size), start_epoch, start_step),
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=torch.cuda.is_available(),
    )
