"""Rows as numpy arrays to rows as torch tensors, whatever they are packed in."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from train_anywhere.data.array_data import map_leaves
from train_anywhere.errors import DataError

TEXT = "UTSO"
"""Kinds of numpy types that torch does not have: texts and objects stay lists."""


def to_tensors(rows: Any) -> Any:
    """The same tuples, lists and dicts with tensors in place of arrays and of numpy's single numbers; texts become lists of `str`.

    Raises:
        DataError: an array of a type that torch does not have.
    """
    return map_leaves(rows, lambda v: _tensor(np.asarray(v)) if isinstance(v, np.ndarray | np.generic) else v)


def to_arrays(rows: Any) -> Any:
    """The same tuples, lists and dicts with arrays in place of tensors."""
    return map_leaves(rows, lambda v: v.numpy() if isinstance(v, torch.Tensor) else v)


def check_rows(rows: Any, count: int, path: str = "") -> None:
    """Raise DataError if `rows` is neither a tuple nor a dict of arrays, or one of its arrays has not `count` rows."""
    if isinstance(rows, np.ndarray):
        if rows.shape[:1] != (count,):
            raise DataError(
                f"the data set's read() was asked for {count} rows, and its array{path} has the shape {list(rows.shape)}; the first "
                "dimension must be the rows."
            )
    elif isinstance(rows, tuple | list | Mapping):
        for key, value in rows.items() if isinstance(rows, Mapping) else enumerate(rows):
            check_rows(value, count, f"{path}[{key!r}]")
    else:
        raise DataError(
            f"the data set's read() gave a {type(rows).__name__}{path}; it must give a tuple or a dict of numpy arrays."
        )


def _tensor(array: np.ndarray) -> Any:
    if array.dtype.kind in TEXT:
        return array.tolist()
    if not (array.dtype.isnative and array.flags.carray):
        array = np.require(array, array.dtype.newbyteorder("="), "CAW")
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise DataError(
            f"the data set's read() gave an array of {array.dtype}, a type that torch does not have; convert it there."
        ) from error
