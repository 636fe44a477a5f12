"""A data set as a PyTorch DataLoader of whole batches, in the order of `train_anywhere.data.order.assignment`."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from train_anywhere.data.order.assignment import BatchOrder, batches_per_epoch
from train_anywhere.data.order.fits import check_batch
from train_anywhere.data.order.keep_batch import keep_batch
from train_anywhere.data.order.prefetch import ahead
from train_anywhere.data.torch.samples import Reader
from train_anywhere.data.torch.unpadded import BareOrder
from train_anywhere.errors import DataError, SignalsAsErrors


class Batch(NamedTuple):
    """A rank's part of a batch of b rows, for a task that counts by weight."""

    rows: Any  # tuple or dict of tensors [b, ...], as the data set gives them
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
class Batches(Dataset[Any]):
    """Maps (epoch, batch) to this rank's batch.

    Attributes:
        order: a `BatchOrder`: a `Batch` of a fixed size, padded; a `BareOrder`: the bare rows, as many as there are.
        train: rows may be augmented.
    """

    reader: Reader
    order: BatchOrder | BareOrder
    train: bool

    @property
    def size(self) -> BatchOrder:
        """Batch size and ranks."""
        return self.order.order if isinstance(self.order, BareOrder) else self.order

    def __len__(self) -> int:
        """Batches of an epoch. Raises DataError if the ranks can't share them."""
        length = len(self.reader.dataset)
        if isinstance(self.order, BareOrder):
            return self.order.batches(length)
        return batches_per_epoch(length, self.order.batch_size)

    def __getitem__(self, key: tuple[int, int]) -> Any:
        """A DataError is returned, not raised: DataLoader would wrap it into the traceback of a worker."""
        try:
            with SignalsAsErrors():
                return self._read(*key)
        except DataError as error:
            return error

    def _read(self, epoch: int, batch: int) -> Any:
        length = len(self.reader.dataset)
        if isinstance(self.order, BareOrder):
            return self.reader.read(self.order.rows(length, epoch, batch), epoch, self.train)
        sizes = getattr(self.reader.dataset, "sizes", None)
        indices, weights = self.order.rows(length, epoch, batch, sizes=sizes)
        return Batch(self.reader.read(indices, epoch, self.train), torch.from_numpy(weights))

    def keep(self, epoch: int, batch: int, rank: int, file: Path) -> list[int]:
        """Write what a rank has in a batch to a file; returns the numbers of its rows. Raises DataError, OSError."""
        own, length = replace(self.size, rank=rank), len(self.reader.dataset)
        if isinstance(self.order, BareOrder):
            indices = replace(self.order, order=own).rows(length, epoch, batch)
        else:
            indices, _ = own.rows(length, epoch, batch)
        return keep_batch(file, indices, self.reader.read(indices, epoch, self.train))


class BatchLoader(DataLoader[Any]):
    """A DataLoader that raises a worker's DataError, and where there are no workers reads small batches several at a time."""

    dataset: Batches

    def __iter__(self) -> Any:
        """Batches, in order."""
        # Rows that are read by index do not depend on when they are; of samples that a data set makes one by one nobody knows.
        by_rows = self.num_workers == 0 and self.dataset.reader.by_rows
        for batch in ahead(super().__iter__()) if by_rows else super().__iter__():
            if isinstance(batch, DataError):
                raise batch
            yield batch


def _as_read(batch: Any) -> Any:
    """It has tensors already; torch's default would look through a batch for arrays, which takes as long as to read a small one."""
    return batch


def torch_loader(
    batches: Batches, *, workers: int = 0, start_epoch: int = 0, start_batch: int = 0
) -> BatchLoader:
    """The batches of a rank; a Trainer needs `use_distributed_sampler=False`, for they are this rank's already.

    Args:
        workers: processes that read; 0 reads in this one.
        start_epoch, start_batch: the first batch, both from 0.

    Raises:
        DataError: the batch does not suit the ranks or the data.
    """
    size = batches.size
    check_batch(len(batches.reader.dataset), size.batch_size, size.world_size, batches.train)
    return BatchLoader(
        batches,
        batch_size=None,
        collate_fn=_as_read,
        sampler=EpochSampler(len(batches), start_epoch, start_batch),
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=torch.cuda.is_available(),
    )
