"""The assignment of samples to batches and ranks: a pure function of (seed, epoch, batch, rank).

The global batch b of epoch e has the samples `[b * B, (b + 1) * B)` of the order from `shuffle.shuffled_rows`, and rank r of W gets its
rows `[r * B / W, (r + 1) * B / W)`. So a result does not depend on the number of ranks, and resuming in the middle of an epoch needs
only (epoch, batch).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from train_anywhere.data.order.blocks import BlockOrder
from train_anywhere.data.order.shuffle import shuffled_rows

Sizes = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class BatchOrder:
    """The batches of one rank.

    Attributes:
        batch_size: samples of a batch over all ranks; a multiple of `world_size`.
        seed: seed of the shuffling.
        rank, world_size: select the rank's part of each batch.
        train: whether samples are shuffled and augmented; else they are in the order of the data set.
        accumulate: batches of one optimizer step, whose loss is the mean over all their samples.
        blocks: the order of a data set that lies in shards; None: any order of all samples.
    """

    batch_size: int
    seed: int
    rank: int = 0
    world_size: int = 1
    train: bool = False
    accumulate: int = 1
    blocks: BlockOrder | None = None

    @property
    def batch_per_rank(self) -> int:
        """The number of rows of a batch on one rank."""
        return self.batch_size // self.world_size

    def rows(
        self, length: int, epoch: int, batch: int, sizes: Sizes | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return this rank's rows of a batch: sample indices int64 [B/W] and their weights float32 [B/W].

        Every batch has the same size. The last one of an epoch is padded with its own samples at weight 0, and its n real samples get
        the weight B/n, so that the mean over rows of weight * loss, averaged over ranks, is the mean over real samples. With `sizes`, a
        sample of size s gets the weight B * s / (sum of sizes in the batch) instead. If several batches make one optimizer step, the
        mean is over the samples of all of them.

        Args:
            length: number of samples in the data set.
            epoch: number of the epoch, from 0.
            batch: number of the batch in the epoch, from 0.
            sizes: maps indices int64 [n] to the sizes [n] of samples, all above 0; None: all samples have the same size.
        """
        size, part = self.batch_size, self.batch_per_rank
        start, stop = self._bounds(length, batch, 1)
        first, last = self._bounds(length, batch - batch % self.accumulate, self.accumulate)
        own = self.rank * part
        share = 1 / (last - first)
        if sizes is None and stop - start == size:
            # compute only this rank's rows, so the cost does not grow with the number of ranks
            return self.full_batch(length, epoch, batch), np.full(
                part, self.accumulate * size * share, dtype=np.float32
            )
        real = self.samples(length, epoch, start, stop)
        if sizes is not None:
            share = sizes(real) / np.sum(sizes(self.samples(length, epoch, first, last)))
        weights = np.zeros(size, dtype=np.float32)
        weights[: len(real)] = self.accumulate * size * share
        rows = real if len(real) == size else np.resize(real, size)  # np.resize is ten times slower
        return rows[own : own + part], weights[own : own + part]

    def full_batch(self, length: int, epoch: int, batch: int) -> np.ndarray:
        """Return this rank's samples of a batch that is not an incomplete last one: int64 [B/W]."""
        part = self.batch_per_rank
        start = batch * self.batch_size + self.rank * part
        if self.train and self.blocks and self.blocks.by_rank:
            start = (self.rank * (length // self.batch_size) + batch) * part
        return self.samples(length, epoch, start, start + part)

    def samples(self, length: int, epoch: int, start: int, stop: int) -> np.ndarray:
        """Return the samples at the positions `start` to `stop` of the epoch, int64 [stop - start]."""
        if not self.train:
            return np.arange(start, stop, dtype=np.int64)
        if self.blocks is None:
            return shuffled_rows(length, self.seed, epoch, start, stop)
        low, high = 0, length
        if self.blocks.by_rank:
            # the parts of all ranks lie one after the other, and after them the incomplete last batch
            each, full = length // self.batch_size * self.batch_per_rank, length - length % self.batch_size
            low = start // each * each if start < full else full
            high = low + each if start < full else length
        return self.blocks.rows(self.seed, epoch, start, stop, low, high)

    def _bounds(self, length: int, batch: int, count: int) -> tuple[int, int]:
        """Return the first and last position (exclusive) of `count` batches in the epoch, without padding."""
        return batch * self.batch_size, min((batch + count) * self.batch_size, length)


def batches_per_epoch(length: int, batch_size: int) -> int:
    """Return the number of batches in one pass over `length` samples; the last one may be padded (see `BatchOrder.rows`)."""
    return -(-length // batch_size)
