"""Rows of tokens like those of data=text, of several documents or with padding."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from train_anywhere.data.dataset import Splits

VOCABULARY = 29


@dataclass(frozen=True)
class Sentences:
    """A split, made from the number of each row.

    Attributes:
        rows: number of rows.
        length: number of targets in a row, including those that do not count.
        first: number of the first row, so that splits share no rows.
    """

    rows: int
    length: int
    first: int = 0

    def __len__(self) -> int:
        return self.rows

    def read(self, indices: np.ndarray, epoch: int, train: bool) -> Mapping[str, np.ndarray]:
        """Return tokens that count up, by 1 or 2 and modulo the vocabulary."""
        documents = np.stack([self._documents(int(n)) for n in indices])
        tokens = []
        for index in indices:
            random = np.random.default_rng([self.first + int(index), 1])
            steps = random.integers(1, 3, self.length + 1)
            tokens.append(np.cumsum(steps) % VOCABULARY)
        return {
            "tokens": np.stack(tokens).astype(np.int32),
            "documents": documents,
            "bytes": self.sizes(indices).astype(np.float32) * 2,
        }

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """Return the number of targets of each row that count."""
        documents = np.stack([self._documents(int(n)) for n in indices])
        counts = (documents[:, 1:] == documents[:, :-1]) & (documents[:, 1:] >= 0)
        return counts.sum(1).astype(np.float64)

    def _documents(self, index: int) -> np.ndarray:
        """Return the rows: even ones have one document and padding, odd ones several documents."""
        random = np.random.default_rng([self.first + index, 0])
        if index % 2:
            return np.sort(random.integers(0, 3, self.length + 1)).astype(np.int32)
        real = random.integers(2, self.length + 2)
        return np.where(np.arange(self.length + 1) < real, 0, -1).astype(np.int32)


def open_sentences(length: int = 12, rows: int = 54) -> Splits:
    """Return splits whose last batch is smaller for most batch sizes."""
    splits = Sentences(rows, length), Sentences(10, length, 1000), Sentences(10, length, 2000)
    facts = {"vocabulary": VOCABULARY, "length": length, "unit": "tokens", "units_per_row": length}
    return Splits(*splits, facts)
