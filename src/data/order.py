"""Which samples a rank sees in which step: pure functions of (seed, epoch, step, rank).

The global batch of step s in epoch e is `permutation(seed, e)[s * B : (s + 1) * B]`, and rank r of W owns its
rows `[r * B / W, (r + 1) * B / W)`. So a result does not depend on the number of ranks, and going on in the
middle of an epoch needs nothing but (epoch, step).
"""

from functools import lru_cache

import numpy as np


def steps_per_epoch(length: int, batch_size: int) -> int:
    """Batches in one pass over `length` samples; the last one may be padded (see `batch_rows`)."""
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


def batch_rows(
    length: int, batch_size: int, seed: int, epoch: int, step: int, rank: int, world_size: int, shuffle: bool
) -> tuple[np.ndarray, np.ndarray]:
    """One rank's rows of a global batch: sample indices int64 [B/W] and their weights float32 [B/W].

    Every batch has the same size. The last one of an epoch is padded with its own samples at weight 0, and
    its n real samples weigh B/n, so that the mean over rows of weight * loss, averaged over ranks, is the one
    over real samples.
    """
    start = step * batch_size
    stop = min(start + batch_size, length)
    real = permutation(length, seed, epoch)[start:stop] if shuffle else np.arange(start, stop, dtype=np.int64)
    weights = np.zeros(batch_size, dtype=np.float32)
    weights[: len(real)] = batch_size / len(real)
    share = batch_size // world_size
    own = slice(rank * share, (rank + 1) * share)
    return np.resize(real, batch_size)[own], weights[own]
