"""Convert rows from numpy arrays to torch tensors and back, in any nested structure."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from train_anywhere.data.array_data import map_leaves
from train_anywhere.errors import DataError

STRINGS = "UTSO"
"""Kinds of numpy types that torch does not have: strings and objects, which become lists."""


def to_tensors(rows: Any) -> Any:
    """Return the same tuples, lists and dicts with arrays and numpy scalars as tensors, and arrays of strings as lists of `str`.

    Raises:
        DataError: an array has a type that torch does not have.
    """
    return map_leaves(rows, lambda v: _tensor(np.asarray(v)) if isinstance(v, np.ndarray | np.generic) else v)


def to_arrays(rows: Any) -> Any:
    """Return the same tuples, lists and dicts with tensors as arrays."""
    return map_leaves(rows, lambda v: v.numpy() if isinstance(v, torch.Tensor) else v)


def check_rows(rows: Any, count: int, path: str = "") -> None:
    """Raise DataError unless `rows` is a tuple or a dict of arrays, each with `count` rows."""
    if isinstance(rows, np.ndarray):
        if rows.shape[:1] != (count,):
            raise DataError(
                f"the data set's read() was called for {count} rows, but its array{path} has the shape {list(rows.shape)}; the first "
                "dimension must be the rows."
            )
    elif isinstance(rows, tuple | list | Mapping):
        for key, value in rows.items() if isinstance(rows, Mapping) else enumerate(rows):
            check_rows(value, count, f"{path}[{key!r}]")
    else:
        raise DataError(
            f"the data set's read() returned a {type(rows).__name__}{path}; it must return a tuple or a dict of numpy arrays."
        )


def _tensor(array: np.ndarray) -> Any:
    if array.dtype.kind in STRINGS:
        return array.tolist()
    if not (array.dtype.isnative and array.flags.carray):
        array = np.require(array, array.dtype.newbyteorder("="), "CAW")
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise DataError(
            f"the data set's read() returned an array of {array.dtype}, a type that torch does not have; convert it in read()."
        ) from error
