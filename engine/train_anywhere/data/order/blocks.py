"""The order of samples for disks with slow random reads: shards in random order, then their rows within a window of shards."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from train_anywhere.data.order.shuffle import permutation, shuffled_rows


@dataclass(frozen=True, eq=False)
class BlockOrder:
    """An order of rows that lie in units, such as shards.

    Attributes:
        starts: first row of each unit, and the number of all rows: int64 [units + 1].
        window: number of units whose rows are shuffled together.
        by_rank: whether each rank reads units of its own.
    """

    starts: np.ndarray
    window: int
    by_rank: bool = False

    def rows(self, seed: int, epoch: int, start: int, stop: int, low: int, high: int) -> np.ndarray:
        """Return the rows at the positions `start` to `stop` of an epoch's order, int64, in time proportional to a window.

        Rows are shuffled within the positions `low` to `high`, among which these are.
        """
        first, ends, bounds = _windows(self, seed, epoch, low, high)
        found = []
        position = start - low
        while position < stop - low:
            window = int(np.searchsorted(bounds, position, "right")) - 1
            begin, end = int(bounds[window]), int(bounds[window + 1])
            until = min(end, stop - low)
            # a number for each window, so that windows of one length have different orders
            own = epoch + ((window + 1) << 32) + (low << 64)
            places = begin + shuffled_rows(end - begin, seed, own, position - begin, until - begin)
            pieces = np.searchsorted(ends, places, "right") - 1
            found.append(first[pieces] + places - ends[pieces])
            position = until
        return np.concatenate(found) if found else np.empty(0, np.int64)


@lru_cache(maxsize=16)
def _windows(
    order: BlockOrder, seed: int, epoch: int, low: int, high: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the first row of each piece of a unit between two positions, the bounds of the pieces, and those of the windows."""
    units = permutation(len(order.starts) - 1, seed, epoch)
    ends = np.concatenate([[0], np.cumsum(np.diff(order.starts)[units])])
    pieces = slice(int(np.searchsorted(ends, low, "right")) - 1, int(np.searchsorted(ends, high, "left")))
    begin, end = np.maximum(ends[:-1][pieces], low), np.minimum(ends[1:][pieces], high)
    first = order.starts[units[pieces]] + begin - ends[:-1][pieces]
    bounds = np.concatenate([[0], np.cumsum(end - begin)])
    return first, bounds, np.append(bounds[: -1 : order.window], bounds[-1])


def block_order(dataset: Any) -> BlockOrder | None:
    """Return the order that a data set of shards has as `blocks`; None for any other data set."""
    found = getattr(dataset, "blocks", None)
    return found if isinstance(found, BlockOrder) else None
