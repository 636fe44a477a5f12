"""Which documents are for training, which for validation and which for the test: by their content alone."""

import hashlib

import numpy as np

from train_anywhere.errors import DataError

PARTS = ("train", "val", "test")


def digest(text: str) -> int:
    """A number of 64 bits, the same for the same text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def part_of_each(digests: np.ndarray, val_fraction: float, test_fraction: float, source: str) -> np.ndarray:
    """The number in `PARTS` of each document.

    Documents are ordered by digest, the first are for the test and the next for validation. So equal texts are always in one part,
    neither names nor the order of files matter, and a document more moves few others.

    Args:
        digests: of the documents, uint64 [n].
        source: where they are from, for the message.

    Returns:
        int8 [n].

    Raises:
        DataError: there are not enough different documents.
    """
    different = np.unique(digests)
    test = max(1, int(test_fraction * len(different))) if test_fraction else 0
    val = max(1, int(val_fraction * len(different)))
    if test + val >= len(different):
        needed = "train, val and test need" if test else "train and val need"
        use = " or data.test_fraction=0" if test else ""
        raise DataError(
            f"{source} has {len(different)} different document{'' if len(different) == 1 else 's'}, and {needed} one each at least, with "
            f"these fractions {test + val + 1}: cut your texts into more files, or lines of *.jsonl{use and ', or use' + use[3:]}."
        )
    part = np.zeros(len(digests), np.int8)
    part[digests < different[test + val]] = PARTS.index("val")
    if test:
        part[digests < different[test]] = PARTS.index("test")
    return part
