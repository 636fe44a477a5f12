"""A data set as a PyTorch DataLoader of whole batches, in the order of `src.data.order`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from src.data.base import ImageSet
from src.data.batch import check_batch
from src.data.order import BatchOrder, batches_per_epoch
from src.errors import DataError


class Batch(NamedTuple):
    """A rank's part of a batch of b samples."""

    image: torch.Tensor  # float32 [b, C, H, W]
    label: torch.Tensor  # int64 [b]
    weight: torch.Tensor  # float32 [b], see `BatchOrder.rows`


class EpochSampler(Sampler[tuple[int, int]]):
    """The (epoch, batch) pairs of one epoch. Workers learn the epoch from the pair, so they can outlive it.

    `len` is always a whole epoch; only `start_epoch`, where a run resumes, begins at `start_batch`.
    """

    def __init__(self, batches: int, start_epoch: int = 0, start_batch: int = 0) -> None:
        self.batches, self.epoch = batches, start_epoch
        self.start_epoch, self.start_batch = start_epoch, start_batch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; Lightning calls this."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[tuple[int, int]]:
        first = self.start_batch if self.epoch == self.start_epoch else 0
        return ((self.epoch, batch) for batch in range(first, self.batches))


@dataclass(frozen=True)
class Batches(Dataset[Batch | DataError]):
    """Maps (epoch, batch) to this rank's batch."""

    dataset: ImageSet
    order: BatchOrder

    def __getitem__(self, key: tuple[int, int]) -> Batch | DataError:
        """A DataError is returned, not raised: DataLoader would wrap it into the traceback of a worker."""
        epoch, batch = key
        indices, weights = self.order.rows(len(self.dataset), epoch, batch)
        try:
            images, labels = self.dataset.read(indices, epoch, self.order.train)
        except DataError as error:
            return error
        channels_first = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
        return Batch(channels_first, torch.from_numpy(labels), torch.from_numpy(weights))


class BatchLoader(DataLoader[Any]):
    """A DataLoader that raises a worker's DataError."""

    def __iter__(self) -> Any:
        """Batches, in order."""
        for batch in super().__iter__():
            if isinstance(batch, DataError):
                raise batch
            yield batch


def torch_loader(
    dataset: ImageSet, order: BatchOrder, *, workers: int = 0, start_epoch: int = 0, start_batch: int = 0
) -> BatchLoader:
    """The batches of a rank; a Trainer needs `use_distributed_sampler=False`, for they are this rank's already.

    Args:
        workers: processes that read; 0 reads in this one.
        start_epoch, start_batch: the first batch, both from 0.

    Raises:
        DataError: the batch does not suit the ranks or the data.
    """
    check_batch(len(dataset), order.batch_size, order.world_size, order.train)
    batches = batches_per_epoch(len(dataset), order.batch_size)
    return BatchLoader(
        Batches(dataset, order),
        batch_size=None,
        sampler=EpochSampler(batches, start_epoch, start_batch),
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=torch.cuda.is_available(),
    )
