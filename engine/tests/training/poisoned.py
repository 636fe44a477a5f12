"""A data set whose validation can't be read."""

from dataclasses import dataclass

import numpy as np

from src.data.friedman import Table, open_friedman
from train_anywhere.data.dataset import Splits


@dataclass(frozen=True)
class Unreadable:
    """Rows of `table` that can't be read."""

    table: Table

    def __len__(self) -> int:
        return len(self.table)

    def read(self, indices: np.ndarray, epoch: int, train: bool) -> dict[str, np.ndarray]:
        """Raise as a damaged file does. Raises ValueError."""
        raise ValueError("row 0 is damaged")


def open_unreadable(length: int) -> Splits:
    """Return `length` rows to train on, and a validation that can't be read."""
    splits = open_friedman(length, 96, 1.0)
    return Splits(splits.train, Unreadable(splits.val), splits.test, splits.facts)
