"""Which samples a rank gets in which batch: pure functions of (seed, epoch, batch, rank).

The global batch b of epoch e is `permutation(seed, e)[b * B : (b + 1) * B]`, and rank r of W gets its
rows `[r * B / W, (r + 1) * B / W)`. So a result does not depend on the number of ranks, and resuming in the
middle of an epoch needs nothing but (epoch, batch).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

Sizes = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class BatchOrder:
    """The batches of one rank.

    Attributes:
        batch_size: samples of a batch, over all ranks; a multiple of `world_size`.
        seed: of the shuffling.
        rank, world_size: the rank's part of each batch.
        train: whether samples are shuffled and augmented; else they come in the order of the set.
        accumulate: batches of one optimizer step, whose mean loss is that of all their samples.
    """

    batch_size: int
    seed: int
    rank: int = 0
    world_size: int = 1
    train: bool = False
    accumulate: int = 1

    @property
    def batch_per_rank(self) -> int:
        """Rows of a batch on one rank."""
        return self.batch_size // self.world_size

    def rows(
        self, length: int, epoch: int, batch: int, sizes: Sizes | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """This rank's rows of a batch: sample indices int64 [B/W] and their weights float32 [B/W].

        Every batch has the same size. The last one of an epoch is padded with its own samples at weight 0, and
        its n real samples weigh B/n, so that the mean over rows of weight * loss, averaged over ranks, is the one
        over real samples. With `sizes`, a sample of size s weighs B * s / (the sizes of the whole batch) instead.
        Of batches that make one step together, the mean is the one over the samples of them all.

        Args:
            length: samples of the set.
            epoch, batch: both from 0.
            sizes: what each sample counts, from indices int64 [n] to numbers [n], all above 0; None: all the same.
        """
        size = self.batch_size
        real = self._samples(length, epoch, batch, 1)
        first = batch - batch % self.accumulate
        if sizes is None:
            start, stop = self._bounds(length, first, self.accumulate)
            share = 1 / (stop - start)
        else:
            share = sizes(real) / np.sum(sizes(self._samples(length, epoch, first, self.accumulate)))
        weights = np.zeros(size, dtype=np.float32)
        weights[: len(real)] = self.accumulate * size * share
        own = slice(self.rank * self.batch_per_rank, (self.rank + 1) * self.batch_per_rank)
        rows = real.copy() if len(real) == size else np.resize(real, size)  # which takes ten times as long
        return rows[own], weights[own]

    def _samples(self, length: int, epoch: int, batch: int, count: int) -> np.ndarray:
        """Those of `count` batches, without padding."""
        start, stop = self._bounds(length, batch, count)
        if self.train:
            return permutation(length, self.seed, epoch)[start:stop]
        return np.arange(start, stop, dtype=np.int64)

    def _bounds(self, length: int, batch: int, count: int) -> tuple[int, int]:
        """Where in the epoch `count` batches begin and end, without padding."""
        return batch * self.batch_size, min((batch + count) * self.batch_size, length)


def batches_per_epoch(length: int, batch_size: int) -> int:
    """Batches in one pass over `length` samples; the last one may be padded (see `BatchOrder.rows`)."""
    return -(-length // batch_size)


@lru_cache(maxsize=4)
def permutation(length: int, seed: int, epoch: int) -> np.ndarray:
    """The order of `length` samples in an epoch: int64 [length], read-only (it is shared by all callers).

    Sorting raw PCG64 output instead of calling `Generator.permutation`: numpy keeps the raw streams of its
    bit generators stable across versions, but not what a Generator makes of them (NEP 19).
    """
    order = np.argsort(np.random.PCG64([seed, epoch]).random_raw(length), kind="stable").astype(np.int64)
    order.flags.writeable = False
    return order
