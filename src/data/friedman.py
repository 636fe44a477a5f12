"""friedman: a synthetic table, the first benchmark of J. Friedman, "Multivariate adaptive regression splines", 1991,
https://doi.org/10.1214/aos/1176347963, equation 61: ten columns, of which five matter.

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
        """The rows by name; nothing is augmented."""
        return {"columns": self.columns[indices], "targets": self.targets[indices]}


def open_friedman(
    length: Samples, val_length: Samples, noise: Annotated[float, Range(at_least=0, at_most=1e6)]
) -> Splits:
    """`length` rows to train on, `val_length` for each of val and test; `noise` is the standard deviation of what can't be predicted."""
    train, val, test = (_table(n, noise, part) for part, n in enumerate((length, val_length, val_length)))
    return Splits(train, val, test, {"shape": (COLUMNS,), "outputs": 1})


def _table(rows: int, noise: float, part: int) -> Table:
    random = np.random.default_rng([61, part])
    x = random.random((rows, COLUMNS))
    y = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    y += noise * random.standard_normal(rows)
    return Table(x.astype(np.float32), y.astype(np.float32)[:, np.newaxis])
