"""Rows of tokens, all of the same length.

A row has length + 1 tokens: each one except the first is a target, predicted from the tokens before it.
"""

from functools import cached_property
from pathlib import Path

import numpy as np

PADDING = -1
"""The document number of padding."""


class TokenFile:
    """An array in a file, memory-mapped at the first use in each process, so that pickling it copies nothing."""

    def __init__(self, path: Path, type: str) -> None:
        self.path, self.type = path, type

    @cached_property
    def array(self) -> np.ndarray:
        """The read-only array, [n]."""
        return np.memmap(self.path, self.type, mode="r")

    def __reduce__(self) -> tuple[type["TokenFile"], tuple[Path, str]]:
        return TokenFile, (self.path, self.type)


class Rows:
    """A `DataSet` of tokens.

    Args:
        tokens: the end symbol, then each document followed by the end symbol.
        widths: int64 [vocabulary], number of UTF-8 bytes of each token.
        length: number of targets in a row.
        end: the end symbol, also used as padding.
    """

    def __init__(self, tokens: TokenFile, widths: np.ndarray, length: int, end: int) -> None:
        self.tokens, self.widths, self.length, self.end = tokens, widths, length, end

    def __len__(self) -> int:
        raise NotImplementedError

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """Return the number of real targets in each row: float64 [n], 1 .. length."""
        raise NotImplementedError

    def _fill(self, row: int, tokens: np.ndarray, documents: np.ndarray) -> None:
        """Write a row into two arrays [length + 1] that are filled with padding."""
        raise NotImplementedError

    def read(self, indices: np.ndarray, epoch: int, train: bool) -> dict[str, np.ndarray]:
        """Return arrays by name, without augmentation.

        - tokens: int32 [n, length + 1].
        - documents: int32 [n, length + 1], the number of the token's document in its row, from 0; -1: padding. A target counts only if
          the token before it is of the same document.
        - bytes: float32 [n], number of UTF-8 bytes of the targets that count.
        """
        shape = len(indices), self.length + 1
        tokens, documents = np.full(shape, self.end, np.int32), np.full(shape, PADDING, np.int32)
        for n, row in enumerate(indices.tolist()):
            self._fill(row, tokens[n], documents[n])
        counts = (documents[:, 1:] == documents[:, :-1]) & (documents[:, 1:] != PADDING)
        width = (self.widths[tokens[:, 1:]] * counts).sum(1)
        return {"tokens": tokens, "documents": documents, "bytes": width.astype(np.float32)}


class PackedRows(Rows):
    """Rows that continue across document ends; the last token of a row is the first of the next. All tokens are of document 0."""

    @property
    def _targets(self) -> int:
        return len(self.tokens.array) - 1

    def __len__(self) -> int:
        return -(-self._targets // self.length)

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """Return the number of real targets in each row: all rows are full except the last one."""
        return np.minimum(self.length, self._targets - indices * self.length).astype(np.float64)

    def _fill(self, row: int, tokens: np.ndarray, documents: np.ndarray) -> None:
        found = self.tokens.array[row * self.length :][: self.length + 1]
        tokens[: len(found)] = found
        documents[: len(found)] = 0


class SeparateRows(Rows):
    """Rows of whole documents, each with the end symbol before it; a row takes the next documents that fit.

    A document longer than a row is cut into full rows and a rest. Each of them starts with the last token of the one before, so each
    token is a target once, as in `PackedRows`.

    Args:
        ends: int64 [documents], the position after the end symbol of each document.
    """

    def __init__(self, tokens: TokenFile, ends: TokenFile, widths: np.ndarray, length: int, end: int) -> None:
        super().__init__(tokens, widths, length, end)
        self._starts, self._sizes = _pieces(ends.array, length)
        self._first = _pack(self._sizes + 1, length + 1)
        self._before = np.append(0, np.cumsum(self._sizes))[self._first]  # targets before each row

    def __len__(self) -> int:
        return len(self._first) - 1

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """Return the number of real targets in each row: float64 [n], 1 .. length."""
        return (self._before[indices + 1] - self._before[indices]).astype(np.float64)

    def _fill(self, row: int, tokens: np.ndarray, documents: np.ndarray) -> None:
        at = 0
        for number, piece in enumerate(range(self._first[row], self._first[row + 1])):
            start, size = self._starts[piece], self._sizes[piece] + 1
            tokens[at : at + size] = self.tokens.array[start : start + size]
            documents[at : at + size] = number
            at += size


def _pieces(ends: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut documents into pieces of at most `length` targets; return first positions and numbers of targets, both int64 [pieces]."""
    starts = np.append(1, ends[:-1]) - 1  # the position of the end symbol before each document
    targets = ends - 1 - starts
    count = -(-targets // length)
    first = np.cumsum(count) - count
    within = np.arange(count.sum()) - np.repeat(first, count)
    return (
        np.repeat(starts, count) + within * length,
        np.minimum(length, np.repeat(targets, count) - within * length),
    )


def _pack(sizes: np.ndarray, capacity: int) -> np.ndarray:
    """Return the first piece of each row, then the number of pieces: int64 [rows + 1]. A row takes the next pieces that fit."""
    total = np.append(0, np.cumsum(sizes))
    following = (np.searchsorted(total, total[:-1] + capacity, side="right") - 1).tolist()
    first = [0]
    while first[-1] < len(sizes):
        first.append(following[first[-1]])
    return np.array(first, np.int64)
