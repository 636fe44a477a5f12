"""Assign documents to train, val and test by their content only."""

import hashlib

import numpy as np

from train_anywhere.errors import DataError

SPLITS = ("train", "val", "test")


def digest(text: str) -> int:
    """Return a 64-bit number that depends only on the string."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def assign_splits(digests: np.ndarray, val_fraction: float, test_fraction: float, source: str) -> np.ndarray:
    """Return the index in `SPLITS` of each document, int8 [n], from the digests, uint64 [n]; `source` is for the message.

    Documents are sorted by digest; the first are for test, the next for validation. So equal documents are always in the same split,
    names and order of files do not matter, and a new document moves few others.

    Raises:
        DataError: there are too few different documents.
    """
    different = np.unique(digests)
    test = max(1, int(test_fraction * len(different))) if test_fraction else 0
    val = max(1, int(val_fraction * len(different)))
    if test + val >= len(different):
        needed = "train, val and test need" if test else "train and val need"
        use = " or data.test_fraction=0" if test else ""
        raise DataError(
            f"{source} has {len(different)} different document{'' if len(different) == 1 else 's'}, and {needed} one each at least, with "
            f"these fractions {test + val + 1}: split them into more files, or lines of *.jsonl{use and ', or use' + use[3:]}."
        )
    split = np.zeros(len(digests), np.int8)
    split[digests < different[test + val]] = SPLITS.index("val")
    if test:
        split[digests < different[test]] = SPLITS.index("test")
    return split
