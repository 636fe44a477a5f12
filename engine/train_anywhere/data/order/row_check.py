"""Check that ranks which split a stream by themselves read different rows."""

import itertools
from hashlib import blake2b
from typing import Any

from train_anywhere.errors import DataError

CHECKED = (4, 32, 256)
"""Numbers of batches after which the ranks compare their rows."""

KEPT = 1024
"""Hashes that a rank keeps, the smallest ones: a sample of its rows, and the same sample on ranks with the same rows."""


class RowHashes:
    """The smallest hashes of a rank's rows, 48 bits each."""

    def __init__(self) -> None:
        self.smallest: list[int] = []

    def add(self, columns: list[Any]) -> None:
        """Add the rows of a batch, arrays [n, ...]."""
        rows = (b"".join(value.tobytes() for value in row) for row in zip(*columns, strict=False))
        found = {int.from_bytes(blake2b(row, digest_size=6).digest()) for row in rows}
        self.smallest = sorted(found.union(self.smallest))[:KEPT]


def refuse_equal_rows(ranks: list[list[int]], batches: int) -> None:
    """Raise DataError if two ranks have more than half of their rows in common; `ranks` are the `RowHashes` of each."""
    for one, other in itertools.combinations(range(len(ranks)), 2):
        low = min((hashes[-1] for hashes in (ranks[one], ranks[other]) if len(hashes) == KEPT), default=2**48)
        compared = [number for number in ranks[one] if number <= low]
        common = len({*compared} & {*ranks[other]})
        if 2 * common > len(compared):
            raise DataError(
                f"data.split=own: ranks {one} and {other} read the same rows, {common} of {len(compared)} compared in the first "
                f"{batches} batches; give each rank rows of its own, by the variables RANK and WORLD_SIZE."
            )
