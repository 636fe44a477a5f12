"""Arrays as in `fit(x, y)`, as a data set that is read by index; and the structures that hold arrays."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from train_anywhere.data.dataset import Arrays
from train_anywhere.errors import DataError


@dataclass(frozen=True)
class ArrayRows:
    """A `DataSet` of arrays in tuples, lists and dicts of any depth.

    Attributes:
        tree: the arrays, each [n, ...].
    """

    tree: Any

    def __len__(self) -> int:
        return len(leaves(self.tree)[0])

    def read(self, indices: np.ndarray, epoch: int, train: bool) -> Arrays:
        """Return the rows of `indices` (int64 [n]) in the same structure."""
        rows: Arrays = map_leaves(self.tree, lambda array: array[indices])
        return rows


def array_rows(part: Any) -> ArrayRows | None:
    """Return the data set of `(x, y)`, `(x, y, weights)` or a dict of arrays; None for anything else.

    A list whose entries are all alike is a list of rows. Numpy's float64 becomes float32, as in `keras.Model.fit`.

    Raises:
        DataError: the arrays of a tuple have different numbers of rows.
    """
    several = isinstance(part, tuple | list) and len(part) in (2, 3)
    if not (several or (isinstance(part, Mapping) and part)):
        return None
    shapes = {repr(map_leaves(one, lambda value: getattr(value, "shape", ())[1:])) for one in part}
    if isinstance(part, list) and len(shapes) == 1:
        return None
    if type(part) in (tuple, list) and is_array(part[0]):  # labels may be a list of numbers
        part = type(part)(
            np.asarray(v) if isinstance(v, list) and len(v) == len(part[0]) else v for v in part
        )
    found = leaves(part)
    if not all(map(is_array, found)):
        return None
    lengths = [len(array) for array in found]
    if len(set(lengths)) == 1:
        return ArrayRows(map_leaves(part, _as_numpy))
    if isinstance(part, tuple):
        raise DataError(
            f"the arrays of one part of the data have {lengths} rows; give all of them the same number."
        )
    return None


def is_array(value: Any) -> bool:
    """Return whether a value is an array, a tensor or a table with at least one dimension."""
    return hasattr(value, "__array__") and len(getattr(value, "shape", ())) > 0


def leaves(tree: Any) -> list[Any]:
    """Return what tuples, lists and dicts of any depth hold."""
    found: list[Any] = []
    map_leaves(tree, found.append)
    return found


def map_leaves(tree: Any, function: Callable[[Any], Any]) -> Any:
    """Return the same tuples, lists and dicts with `function` of what they hold."""
    if isinstance(tree, Mapping):
        return {key: map_leaves(value, function) for key, value in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_leaves(value, function) for value in tree))
    return (
        type(tree)(map_leaves(v, function) for v in tree)
        if isinstance(tree, tuple | list)
        else function(tree)
    )


def _as_numpy(value: Any) -> np.ndarray:
    tensor = hasattr(value, "detach")  # it has the type that it was given
    array = np.asanyarray(value.detach().cpu() if tensor else value)
    return (
        array
        if tensor or isinstance(value, np.memmap) or array.dtype != np.float64
        else array.astype(np.float32)
    )
