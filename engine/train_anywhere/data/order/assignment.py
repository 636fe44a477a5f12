"""The assignment of samples to batches and ranks: a pure function of (seed, epoch, batch, rank).

The global batch b of epoch e has the samples `[b * B, (b + 1) * B)` of the order from `shuffle.shuffled_rows`, and rank r of W gets its
rows `[r * B / W, (r + 1) * B / W)`. So a result does not depend on the number of ranks, and resuming in the middle of an epoch needs
only (epoch, batch). `BlockOrder` is for disks with slow random reads: shards in random order, then their rows within a window of shards.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from train_anywhere.data.order.shuffle import permutation, shuffled_rows
from train_anywhere.errors import DataError


@dataclass(frozen=True, eq=False)
class BlockOrder:
    """An order of rows that lie in units, such as shards.

    Attributes:
        starts: first row of each unit, and the number of all rows: int64 [units + 1].
        window: number of units whose rows are shuffled together.
        by_rank: whether each rank reads units of its own.
    """

    starts: np.ndarray
    window: int
    by_rank: bool = False

    def rows(self, seed: int, epoch: int, start: int, stop: int, low: int, high: int) -> np.ndarray:
        """Return the rows at the positions `start` to `stop` of an epoch's order, int64, in time proportional to a window.

        Rows are shuffled within the positions `low` to `high`, among which these are.
        """
        first, ends, bounds = _windows(self, seed, epoch, low, high)
        found = []
        position = start - low
        while position < stop - low:
            window = int(np.searchsorted(bounds, position, "right")) - 1
            begin, end = int(bounds[window]), int(bounds[window + 1])
            until = min(end, stop - low)
            # a number for each window, so that windows of one length have different orders
            own = epoch + ((window + 1) << 32) + (low << 64)
            places = begin + shuffled_rows(end - begin, seed, own, position - begin, until - begin)
            pieces = np.searchsorted(ends, places, "right") - 1
            found.append(first[pieces] + places - ends[pieces])
            position = until
        return np.concatenate(found) if found else np.empty(0, np.int64)


@lru_cache(maxsize=16)
def _windows(
    order: BlockOrder, seed: int, epoch: int, low: int, high: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the first row of each piece of a unit between two positions, the bounds of the pieces, and those of the windows."""
    units = permutation(len(order.starts) - 1, seed, epoch)
    ends = np.concatenate([[0], np.cumsum(np.diff(order.starts)[units])])
    pieces = slice(int(np.searchsorted(ends, low, "right")) - 1, int(np.searchsorted(ends, high, "left")))
    begin, end = np.maximum(ends[:-1][pieces], low), np.minimum(ends[1:][pieces], high)
    first = order.starts[units[pieces]] + begin - ends[:-1][pieces]
    bounds = np.concatenate([[0], np.cumsum(end - begin)])
    return first, bounds, np.append(bounds[: -1 : order.window], bounds[-1])


def block_order(dataset: Any) -> BlockOrder | None:
    """Return the order that a data set of shards has as `blocks`; None for any other data set."""
    found = getattr(dataset, "blocks", None)
    return found if isinstance(found, BlockOrder) else None


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
