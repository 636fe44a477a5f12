"""The assignment of samples to batches and ranks: a pure function of (seed, epoch, batch, rank).

The global batch b of epoch e has the samples `[b * B, (b + 1) * B)` of the order from `shuffle.shuffled_rows`, and rank r of W gets its
rows `[r * B / W, (r + 1) * B / W)`. So a result does not depend on the number of ranks, and resuming in the middle of an epoch needs
only (epoch, batch).
"""

from dataclasses import dataclass

import numpy as np

from train_anywhere.data.order.blocks import BlockOrder
from train_anywhere.data.order.shuffle import shuffled_rows
from train_anywhere.errors import DataError


@dataclass(frozen=True)
class BatchOrder:
    """The rows of one rank, batch by batch, without padding and weights.

    If the incomplete last batch is not left out, the ranks share it, and every rank has at least one row of each batch: if the last one
    has fewer rows than there are ranks, its rows go into the batch before.

    Attributes:
        batch_size: samples of a batch over all ranks; a multiple of `world_size`.
        seed: seed of the shuffling.
        rank, world_size: select the rank's part of each batch.
        train: whether samples are shuffled; else they are in the order of the data set.
        blocks: the order of a data set that lies in shards; None: any order of all samples.
        parts: number of batches that each global batch is divided into, one after the other.
        drop_last: whether the incomplete last batch of an epoch is left out.
    """

    batch_size: int
    seed: int
    rank: int = 0
    world_size: int = 1
    train: bool = False
    blocks: BlockOrder | None = None
    parts: int = 1
    drop_last: bool = False

    @property
    def batch_per_rank(self) -> int:
        """The number of rows of a full batch on one rank."""
        return self.batch_size // self.world_size // self.parts

    def batches(self, length: int) -> int:
        """Return the number of batches in one pass over `length` rows.

        Raises:
            DataError: an evaluation has fewer rows than there are ranks.
        """
        whole, left = divmod(length, self.batch_size)
        if self.drop_last:
            return whole * self.parts
        if length < self.world_size:
            raise DataError(
                f"an evaluation of {length} rows can't be shared by {self.world_size} ranks; use {max(1, length)} or fewer, or turn "
                "it off with trainer.limit_val_batches=0 trainer.limit_test_batches=0."
            )
        return whole + (left >= self.world_size or not whole)

    def rows(self, length: int, epoch: int, batch: int) -> np.ndarray:
        """Return this rank's rows of a batch: indices int64 [n]; in a full batch all ranks have the same number of rows."""
        batch, part = divmod(batch, self.parts)
        start = batch * self.batch_size
        last = not self.drop_last and batch + 1 == self.batches(length)
        size = length - start if last else self.batch_size
        # the same part as of np.array_split, without computing the others' rows
        each, more = divmod(size, self.world_size)
        start += self.rank * each + min(self.rank, more)
        if self.train and self.blocks and self.blocks.by_rank and size == self.batch_size:
            start = (self.rank * (length // self.batch_size) + batch) * each
        count = (each + (self.rank < more)) // self.parts
        start += part * count
        return self.samples(length, epoch, start, start + count)

    def samples(self, length: int, epoch: int, start: int, stop: int) -> np.ndarray:
        """Return the samples at the positions `start` to `stop` of the epoch, int64 [stop - start]."""
        if not self.train:
            return np.arange(start, stop, dtype=np.int64)
        if self.blocks is None:
            return shuffled_rows(length, self.seed, epoch, start, stop)
        low, high = 0, length
        if self.blocks.by_rank:
            # the parts of all ranks lie one after the other, and after them the incomplete last batch
            full = length - length % self.batch_size
            each = full // self.world_size
            low = start // each * each if start < full else full
            high = low + each if start < full else length
        return self.blocks.rows(self.seed, epoch, start, stop, low, high)
