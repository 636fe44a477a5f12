"""synthetic: random images of any shape, number of classes and length, for benchmarks."""

from typing import Annotated

import numpy as np

from train_anywhere.config import Range, Samples, Side
from train_anywhere.data import Splits, image_splits

# Images come from a pool made once, so that a read is one copy. The pool is smaller than this number of bytes.
POOL_BYTES = 64 * 2**20


class SyntheticSet:
    """Random images from a fixed pool, noise around the mean of their class.

    If images are so large that the pool has fewer images than there are classes, only the first classes occur.
    """

    def __init__(self, shape: tuple[int, int, int], classes: int, length: int) -> None:
        self.shape, self.classes, self.length = shape, classes, length
        pool = max(1, min(max(256, classes), POOL_BYTES // (4 * shape[0] * shape[1] * shape[2])))
        random = np.random.default_rng(0)
        # One mean per class and image row: enough to separate many classes even with one channel.
        means = random.standard_normal((classes, shape[0], 1, shape[2]), dtype=np.float32)
        self.labels = np.arange(pool, dtype=np.int64) % classes
        self.images = random.standard_normal((pool, *shape), dtype=np.float32) + means[self.labels]

    def __len__(self) -> int:
        return self.length

    def read(self, indices: np.ndarray, epoch: int, train: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return images float32 [b, H, W, C] and labels int64 [b]."""
        rows = indices % len(self.labels)
        return self.images[rows], self.labels[rows]


def open_synthetic(
    height: Side,
    width: Side,
    channels: Side,
    classes: Annotated[int, Range(at_least=1, at_most=16_777_216)],
    length: Samples,
    val_length: Samples,
) -> Splits:
    """Return `length` samples to train on and `val_length` that serve as val and as test."""
    shape = height, width, channels
    held_out = SyntheticSet(shape, classes, val_length)
    return image_splits(SyntheticSet(shape, classes, length), held_out, held_out)
