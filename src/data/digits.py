"""digits: 1,797 real handwritten digits of 8x8 pixels that come with scikit-learn; needs no network."""

import numpy as np

from src.data.base import ArraySet, Splits
from src.data.order import permutation

# Grey levels are 0..16; these are the mean and standard deviation of all pixels of the set.
MEAN, STD = 4.884, 6.017


def open_digits() -> Splits:
    """About 70 % train, 10 % val, 20 % test; the split is always the same, whatever the seed of the run."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    everything = ArraySet(
        images=bunch.images.astype(np.uint8)[..., np.newaxis],
        labels=bunch.target.astype(np.int64),
        classes=10,
        scale=1 / STD,
        shift=-MEAN / STD,
    )
    rows = permutation(len(everything), seed=0, epoch=0)
    val, test = len(rows) // 10, len(rows) // 5
    return Splits(
        train=everything.part(rows[val + test :]),
        val=everything.part(rows[:val]),
        test=everything.part(rows[val : val + test]),
    )
