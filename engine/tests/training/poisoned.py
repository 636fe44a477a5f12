"""A table of which one row is no number: each time it is read, or the first time alone, as by a defective machine."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from src.data.friedman import Table, open_friedman
from train_anywhere.data.dataset import Splits


@dataclass(frozen=True)
class Poisoned:
    """Rows of `table`; in the second epoch one is no number.

    Attributes:
        once: a file that is made when it is read for the first time, and the last; None: each time.
    """

    table: Table
    row: int
    once: Path | None

    def __len__(self) -> int:
        return len(self.table)

    def read(self, indices: np.ndarray, epoch: int, train: bool) -> dict[str, np.ndarray]:
        """See `Table.read`."""
        rows = self.table.read(indices, epoch, train)
        if train and epoch == 1 and self.row in indices and not (self.once and self.once.exists()):
            if self.once:
                self.once.touch()
            # not its columns: some kernels of relu make 0 of nan
            rows["targets"][list(indices).index(self.row)] = np.nan
        return rows


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
    """`length` rows to train on; the validation can't be read."""
    splits = open_friedman(length, 96, 1.0)
    return Splits(splits.train, Unreadable(splits.val), splits.test, splits.facts)


def open_poisoned(length: int, row: int, once: str | None = None) -> Splits:
    """`length` rows to train on, 96 to test with."""
    splits = open_friedman(length, 96, 1.0)
    train = Poisoned(splits.train, row, Path(once) if once else None)
    return Splits(train, splits.val, splits.test, splits.facts)
