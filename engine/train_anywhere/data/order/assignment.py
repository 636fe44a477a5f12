"""Which samples a rank gets in which batch: pure functions of (seed, epoch, batch, rank).

The global batch b of epoch e is what `shuffle.shuffled` has at `[b * B, (b + 1) * B)`, and rank r of W gets its
rows `[r * B / W, (r + 1) * B / W)`. So a result does not depend on the number of ranks, and resuming in the
middle of an epoch needs nothing but (epoch, batch).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from train_anywhere.data.order.shuffle import shuffled

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
        size, part = self.batch_size, self.batch_per_rank
        start, stop = self._bounds(length, batch, 1)
        first, last = self._bounds(length, batch - batch % self.accumulate, self.accumulate)
        own = self.rank * part
        share = 1 / (last - first)
        if sizes is None and stop - start == size:
            # Other ranks' rows cost nothing, however many they are.
            rows = self._samples(length, epoch, start + own, start + own + part)
            return rows, np.full(part, self.accumulate * size * share, dtype=np.float32)
        real = self._samples(length, epoch, start, stop)
        if sizes is not None:
            share = sizes(real) / np.sum(sizes(self._samples(length, epoch, first, last)))
        weights = np.zeros(size, dtype=np.float32)
        weights[: len(real)] = self.accumulate * size * share
        rows = real if len(real) == size else np.resize(real, size)  # which takes ten times as long
        return rows[own : own + part], weights[own : own + part]

    def _samples(self, length: int, epoch: int, start: int, stop: int) -> np.ndarray:
        """Those at `start` to `stop` of the epoch, int64 [stop - start]."""
        if self.train:
            return shuffled(length, self.seed, epoch, start, stop)
        return np.arange(start, stop, dtype=np.int64)

    def _bounds(self, length: int, batch: int, count: int) -> tuple[int, int]:
        """Where in the epoch `count` batches begin and end, without padding."""
        return batch * self.batch_size, min((batch + count) * self.batch_size, length)


def batches_per_epoch(length: int, batch_size: int) -> int:
    """Batches in one pass over `length` samples; the last one may be padded (see `BatchOrder.rows`)."""
    return -(-length // batch_size)
