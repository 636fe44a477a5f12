"""friedman: a synthetic table with ten columns, of which five determine the target.

The first benchmark of J. Friedman, "Multivariate adaptive regression splines", 1991, https://doi.org/10.1214/aos/1176347963, equation 61:
y = 10 sin(pi x1 x2) + 20 (x3 - 1/2)^2 + 10 x4 + 5 x5 + noise, with columns uniform in [0, 1] and normal noise.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from train_anywhere.config import Range, Samples
from train_anywhere.data import Splits

COLUMNS = 10


@dataclass(frozen=True)
class Table:
    """Rows in memory: columns float32 [n, columns] and targets float32 [n, outputs]."""

    columns: np.ndarray
    targets: np.ndarray

    def __len__(self) -> int:
        return len(self.columns)

    def read(self, indices: np.ndarray, epoch: int, train: bool) -> dict[str, np.ndarray]:
        """Return {"columns": [b, columns], "targets": [b, outputs]}, never augmented."""
        return {"columns": self.columns[indices], "targets": self.targets[indices]}


def open_friedman(
    length: Samples, val_length: Samples, noise: Annotated[float, Range(at_least=0, at_most=1e6)]
) -> Splits:
    """Return `length` rows to train on, and `val_length` for each of val and test."""
    lengths = length, val_length, val_length
    train, val, test = (_make_table(n, noise, split) for split, n in enumerate(lengths))
    return Splits(train, val, test, {"shape": (COLUMNS,), "outputs": 1, "unit": "rows"})


def _make_table(rows: int, noise: float, split: int) -> Table:
    random = np.random.default_rng([61, split])  # the same rows in every run
    x = random.random((rows, COLUMNS))
    y = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    y += noise * random.standard_normal(rows)
    return Table(x.astype(np.float32), y.astype(np.float32)[:, np.newaxis])
