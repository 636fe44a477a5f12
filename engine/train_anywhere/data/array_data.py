"""Data sets of arrays as in `fit(x, y)`, and functions on nested structures of arrays, such as what a model returns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from train_anywhere.data.dataset import Arrays
from train_anywhere.errors import CheckpointError, DataError


@dataclass(frozen=True)
class ArrayRows:
    """A `DataSet` of arrays in tuples, lists and dicts of any depth.

    Attributes:
        tree: the structure of arrays, each [n, ...].
    """

    tree: Any

    def __len__(self) -> int:
        return len(leaves(self.tree)[0])

    def read(self, indices: np.ndarray, epoch: int, train: bool) -> Arrays:
        """Return the rows of `indices` (int64 [n]) in the same structure."""
        rows: Arrays = map_leaves(self.tree, lambda array: array[indices])
        return rows


def array_rows(split: Any) -> ArrayRows | None:
    """Return the data set of `(x, y)`, `(x, y, weights)` or a dict of arrays; None for anything else.

    A list whose entries all have the same shape after the first dimension is taken for a list of rows: None.
    float64 becomes float32, as in `keras.Model.fit`, except in memory maps and torch tensors.
    Raises DataError: the arrays in a tuple differ in their number of rows.
    """
    is_pair_or_triple = isinstance(split, tuple | list) and len(split) in (2, 3)
    if not (is_pair_or_triple or (isinstance(split, Mapping) and split)):
        return None
    shapes = {repr(map_leaves(entry, lambda value: getattr(value, "shape", ())[1:])) for entry in split}
    if isinstance(split, list) and len(shapes) == 1:
        return None
    if type(split) in (tuple, list) and is_array(split[0]):  # labels may be a list of numbers
        split = type(split)(
            np.asarray(v) if isinstance(v, list) and len(v) == len(split[0]) else v for v in split
        )
    arrays = leaves(split)
    if not all(map(is_array, arrays)):
        return None
    lengths = [len(array) for array in arrays]
    if len(set(lengths)) == 1:
        return ArrayRows(map_leaves(split, _to_numpy))
    if isinstance(split, tuple):
        raise DataError(f"the arrays of one split have {lengths} rows, but all need the same number of rows.")
    return None


def stack(samples: list[Any], pad: str = "give the data set a collate_fn that pads them") -> Any:
    """Stack samples of the same structure into a batch; float64 becomes float32. `pad` is what to do if their shapes differ.

    Raises:
        DataError: the samples differ in structure or in the shapes of their arrays.
    """
    first = samples[0]
    if isinstance(first, Mapping):
        if any(sample.keys() != first.keys() for sample in samples):
            raise DataError("the samples of a batch have different names; give the data set a collate_fn.")
        return {name: stack([sample[name] for sample in samples], pad) for name in first}
    if isinstance(first, tuple | list):
        if any(len(sample) != len(first) for sample in samples):
            raise DataError("the samples of a batch have different lengths; give the data set a collate_fn.")
        return tuple(stack([sample[n] for sample in samples], pad) for n in range(len(first)))
    if hasattr(first, "__getitem__") and not (hasattr(first, "__array__") or isinstance(first, str | bytes)):
        raise DataError(
            f"a row of the data is a {type(first).__name__}, a data set itself; return one each for train, val and test."
        )
    if isinstance(first, str | bytes | int | float | np.generic):
        # numpy would remove zeros at the end of bytes, and give all strings the length of the longest
        stacked = np.array(samples, object if isinstance(first, str | bytes) else None)
        strings = [isinstance(sample, str | bytes) for sample in samples]
        if stacked.ndim > 1 or len({*strings}) > 1 or (stacked.dtype == object and not strings[0]):
            raise DataError(
                "the samples of a batch have values of different types, or numbers of more than 64 bits."
            )
    else:
        arrays = [np.asarray(sample) for sample in samples]
        if len(different := sorted({a.shape for a in arrays})) > 1:
            shapes = " and ".join(str(list(shape)) for shape in different[:2])
            raise DataError(f"the samples of a batch have arrays of different shapes ({shapes}); {pad}.")
        stacked = np.stack(arrays)
        if stacked.dtype == object and any(value is None for value in stacked.flat):
            raise DataError("a sample has null (None) among its values; replace it, or leave it out.")
    return stacked.astype(np.float32) if stacked.dtype == np.float64 else stacked


def is_array(value: Any) -> bool:
    """Return whether a value is an array, a tensor or a table with at least one dimension."""
    return hasattr(value, "__array__") and len(getattr(value, "shape", ())) > 0


def leaves(tree: Any) -> list[Any]:
    """Return all values inside tuples, lists and dicts of any depth."""
    values: list[Any] = []
    map_leaves(tree, values.append)
    return values


def map_leaves(tree: Any, function: Callable[[Any], Any]) -> Any:
    """Return the same structure of tuples, lists and dicts with `function` applied to each value inside."""
    if isinstance(tree, Mapping):
        return {key: map_leaves(value, function) for key, value in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_leaves(value, function) for value in tree))
    if isinstance(tree, tuple | list):
        return type(tree)(map_leaves(value, function) for value in tree)
    return function(tree)


def _to_numpy(value: Any) -> np.ndarray:
    if hasattr(value, "detach"):  # a torch tensor keeps its dtype
        return np.asanyarray(value.detach().cpu())
    array = np.asanyarray(value)
    keep = isinstance(value, np.memmap) or array.dtype != np.float64
    return array if keep else array.astype(np.float32)


def check_answers(format: str, expected: Sequence[Any], written: Any, half: bool = False) -> None:
    """Raise CheckpointError unless an exported model answers as the trained one.

    Args:
        format: the export's format.
        expected: what the trained model returned for the same rows in two calls, arrays [n, ...] in any nesting. If they differ, as those
            of a model that draws random numbers, nothing is compared, and a line is printed.
        written: what the exported model returned for these rows.
        half: the model computes with 16 bits.
    """
    first, second, other = (
        [np.asarray(a, np.float64) for a in map(np.asarray, leaves(tree)) if a.dtype.kind in "biuf"]
        for tree in (*expected, written)
    )
    if any(not np.array_equal(a, b, equal_nan=True) for a, b in zip(first, second, strict=True)):
        print(f"{format}: not compared with the trained model, whose answers differ from call to call.")
        return
    for a, b in zip(first, other, strict=False):  # a graph may return more, such as caches
        size = float(np.abs(a).max(initial=1e-3))
        off = float(np.abs(a - b).max(initial=0)) if a.shape == b.shape else np.inf
        if not off <= (5e-2 if half else 1e-3) * size and not np.array_equal(a, b, equal_nan=True):
            raise CheckpointError(
                f"--export {format}: the written model answers differently from the trained one, by {off:.2g} for values up to "
                f"{size:.2g}; it was removed. Use another format."
            )


def flatten_arrays(tree: Any, name: str = "predictions") -> dict[str, np.ndarray]:
    """Return the arrays in nested tuples and dicts by name. A single one is "predictions"."""
    if isinstance(tree, Mapping):
        return {k: v for key, value in tree.items() for k, v in flatten_arrays(value, str(key)).items()}
    if isinstance(tree, list | tuple):
        return {k: v for n, value in enumerate(tree) for k, v in flatten_arrays(value, f"{name}_{n}").items()}
    return {name: np.asarray(tree)}
