"""Rows of tokens as a data set of texts gives them: some hold several documents, some one and padding, and no two count the same."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from train_anywhere.data.dataset import Splits

VOCABULARY = 29


@dataclass(frozen=True)
class Sentences:
    """Made of (seed, index) alone.

    Attributes:
        rows: how many there are.
        length: targets of a row, less those that do not count.
        first: number of the first row: no two parts have one in common.
    """

    rows: int
    length: int
    first: int = 0

    def __len__(self) -> int:
        return self.rows

    def read(self, indices: np.ndarray, epoch: int, train: bool) -> Mapping[str, np.ndarray]:
        """Tokens that count up, by 1 or 2 and modulo the vocabulary."""
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
        """Targets of each row that count."""
        documents = np.stack([self._documents(int(n)) for n in indices])
        counts = (documents[:, 1:] == documents[:, :-1]) & (documents[:, 1:] >= 0)
        return counts.sum(1).astype(np.float64)

    def _documents(self, index: int) -> np.ndarray:
        """Even rows are one document and padding, odd ones several documents."""
        random = np.random.default_rng([self.first + index, 0])
        if index % 2:
            return np.sort(random.integers(0, 3, self.length + 1)).astype(np.int32)
        real = random.integers(2, self.length + 2)
        return np.where(np.arange(self.length + 1) < real, 0, -1).astype(np.int32)


def open_sentences(length: int = 12, rows: int = 54) -> Splits:
    """With a last batch that is not whole, for most sizes of a batch."""
    parts = Sentences(rows, length), Sentences(10, length, 1000), Sentences(10, length, 2000)
    return Splits(*parts, {"vocabulary": VOCABULARY, "length": length})
