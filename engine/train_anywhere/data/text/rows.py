"""Tokens as rows of one length.

A row has length + 1 tokens: each but the first is a target, which is predicted from those before it.
"""

from functools import cached_property
from pathlib import Path

import numpy as np

PADDING = -1
"""The document of a token that is none."""


class TokenFile:
    """An array in a file, mapped when it is first used: in each process anew, so that passing it on copies nothing."""

    def __init__(self, path: Path, type: str) -> None:
        self.path, self.type = path, type

    @cached_property
    def array(self) -> np.ndarray:
        """The numbers, read-only, [n]."""
        return np.memmap(self.path, self.type, mode="r")

    def __reduce__(self) -> tuple[type["TokenFile"], tuple[Path, str]]:
        return TokenFile, (self.path, self.type)


class Rows:
    """A `DataSet` of tokens.

    Args:
        tokens: the end symbol, and each document with one behind it.
        widths: int64 [vocabulary], bytes of text that each token stands for.
        length: targets of a row.
        end: the end symbol, which is the padding too.
    """

    def __init__(self, tokens: TokenFile, widths: np.ndarray, length: int, end: int) -> None:
        self.tokens, self.widths, self.length, self.end = tokens, widths, length, end

    def __len__(self) -> int:
        raise NotImplementedError

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """How many targets count in each row: float64 [n], 1 .. length."""
        raise NotImplementedError

    def _fill(self, row: int, tokens: np.ndarray, documents: np.ndarray) -> None:
        """Write a row into two arrays [length + 1] that are all padding."""
        raise NotImplementedError

    def read(self, indices: np.ndarray, epoch: int, train: bool) -> dict[str, np.ndarray]:
        """Rows by name; nothing is augmented.

        - tokens: int32 [n, length + 1].
        - documents: int32 [n, length + 1], the number of the token's document in its row, from 0; -1: padding. A target counts where it is
          of the same document as the token before it.
        - bytes: float32 [n], of UTF-8, that the targets which count stand for.
        """
        shape = len(indices), self.length + 1
        tokens, documents = np.full(shape, self.end, np.int32), np.full(shape, PADDING, np.int32)
        for n, row in enumerate(indices.tolist()):
            self._fill(row, tokens[n], documents[n])
        counts = (documents[:, 1:] == documents[:, :-1]) & (documents[:, 1:] != PADDING)
        width = (self.widths[tokens[:, 1:]] * counts).sum(1)
        return {"tokens": tokens, "documents": documents, "bytes": width.astype(np.float32)}


class Packed(Rows):
    """Rows that run on over the ends of documents; the last token of a row is the first of the next. All are of one document, 0."""

    @property
    def _targets(self) -> int:
        return len(self.tokens.array) - 1

    def __len__(self) -> int:
        return -(-self._targets // self.length)

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """See Rows: all are full but the last one."""
        return np.minimum(self.length, self._targets - indices * self.length).astype(np.float64)

    def _fill(self, row: int, tokens: np.ndarray, documents: np.ndarray) -> None:
        found = self.tokens.array[row * self.length :][: self.length + 1]
        tokens[: len(found)] = found
        documents[: len(found)] = 0


class Apart(Rows):
    """Rows of whole documents, each with the end symbol before it, as many as fit in their order.

    One that is longer than a row is cut into full ones, which begin with the token that the row before ended with, and a rest. So each
    token is a target once, as in `Packed`.

    Args:
        ends: int64 [documents], the position after each one's end symbol.
    """

    def __init__(self, tokens: TokenFile, ends: TokenFile, widths: np.ndarray, length: int, end: int) -> None:
        super().__init__(tokens, widths, length, end)
        self._starts, self._sizes = _pieces(ends.array, length)
        self._first = _packed(self._sizes + 1, length + 1)
        self._before = np.append(0, np.cumsum(self._sizes))[self._first]  # targets before each row

    def __len__(self) -> int:
        return len(self._first) - 1

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """See Rows."""
        return (self._before[indices + 1] - self._before[indices]).astype(np.float64)

    def _fill(self, row: int, tokens: np.ndarray, documents: np.ndarray) -> None:
        at = 0
        for number, piece in enumerate(range(self._first[row], self._first[row + 1])):
            start, size = self._starts[piece], self._sizes[piece] + 1
            tokens[at : at + size] = self.tokens.array[start : start + size]
            documents[at : at + size] = number
            at += size


def _pieces(ends: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Documents cut into pieces of at most `length` targets: position of the first token, number of targets; int64 [pieces]."""
    starts = np.append(1, ends[:-1]) - 1  # the end symbol before
    targets = ends - 1 - starts
    count = -(-targets // length)
    first = np.cumsum(count) - count
    within = np.arange(count.sum()) - np.repeat(first, count)
    return (
        np.repeat(starts, count) + within * length,
        np.minimum(length, np.repeat(targets, count) - within * length),
    )


def _packed(sizes: np.ndarray, room: int) -> np.ndarray:
    """The first piece of each row, and their number: int64 [rows + 1]. A row takes the next pieces as long as there is room."""
    total = np.append(0, np.cumsum(sizes))
    following = (np.searchsorted(total, total[:-1] + room, side="right") - 1).tolist()
    first = [0]
    while first[-1] < len(sizes):
        first.append(following[first[-1]])
    return np.array(first, np.int64)
