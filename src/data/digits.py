"""digits: 1,797 real handwritten digits of 8x8 pixels, stored next to this file.

The test set of "Optical Recognition of Handwritten Digits", E. Alpaydin and C. Kaynak, 1998, UCI Machine Learning
Repository, https://doi.org/10.24432/C50P49, CC BY 4.0. Not read from scikit-learn, which has it too: that needs
scipy, which a framework may import if it is installed, and each rank would start seconds later.
"""

from pathlib import Path

import numpy as np

from train_anywhere.data import ArraySet, Splits, image_splits, permutation

FILE = Path(__file__).with_name("digits.npz")
"""`images` uint8 [1797, 8, 8] and `labels` uint8 [1797]."""
# Grey levels are 0..16; these are the mean and standard deviation of all pixels of the set.
MEAN, STD = 4.884, 6.017


def open_digits() -> Splits:
    """Return 70 % train, 10 % val and 20 % test, whatever the seed of the run is."""
    with np.load(FILE, allow_pickle=False) as arrays:
        everything = ArraySet(
            images=arrays["images"][..., np.newaxis],
            labels=arrays["labels"].astype(np.int64),
            classes=10,
            scale=1 / STD,
            shift=-MEAN / STD,
        )
    rows = permutation(len(everything), seed=0, epoch=0)
    val, test = len(rows) // 10, len(rows) // 5
    return image_splits(
        train=everything.part(rows[val + test :]),
        val=everything.part(rows[:val]),
        test=everything.part(rows[val : val + test]),
    )
