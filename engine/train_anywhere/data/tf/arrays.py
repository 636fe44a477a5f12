"""Batches of arrays as tensors: their types and shapes are learnt from rows that are read beforehand."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from train_anywhere.errors import DataError, SignalsAsErrors

Structure = Any
"""Arrays, or tensors, in a tuple or a dict, which may be nested."""


def as_arrays(structure: Structure, what: str) -> Structure:
    """The same structure with numpy arrays of types that TensorFlow has; texts become bytes.

    Args:
        what: where they come from, for the message.

    Raises:
        DataError: an array holds Python objects.
    """
    if isinstance(structure, np.ndarray):
        return _as_array(structure, what)
    if isinstance(structure, dict):
        return {name: as_arrays(value, what) for name, value in structure.items()}
    if isinstance(
        structure, tuple | list
    ):  # lists are tuples, as Keras takes them; TensorFlow would take them for arrays
        values = [as_arrays(value, what) for value in structure]
        return type(structure)(*values) if hasattr(structure, "_fields") else tuple(values)
    return tf.nest.map_structure(lambda leaf: _as_array(leaf, what), structure)


def _as_array(leaf: Any, what: str) -> np.ndarray:
    array = np.asarray(leaf)
    if array.dtype.kind == "U":
        return np.char.encode(array, "utf-8").astype(object)
    if array.dtype.kind == "O" and not all(isinstance(v, str | bytes) for v in array.flat):
        found = type(next(v for v in array.flat if not isinstance(v, str | bytes))).__name__
        raise DataError(
            f"{what} gives a value of type {found}, which is no tensor; give numbers, texts or arrays of them, or a "
            "collate_fn that does."
        )
    if array.dtype.kind == "O":
        return np.array([v.encode() if isinstance(v, str) else v for v in array.flat], object).reshape(
            array.shape
        )
    return array.astype(object) if array.dtype.kind == "S" else array


def probed_spec(first: Structure, last: Structure, rows: int | None, what: str) -> Structure:
    """What all batches have in common: a `tf.TensorSpec` for each array.

    A dimension in which the two differ is None: any length.

    Args:
        first, last: one row each, as batches of one.
        rows: of every batch; None: they differ.
        what: where the rows come from, for the message.

    Raises:
        DataError: the two are not of one structure, type and number of dimensions.
    """
    try:
        tf.nest.assert_same_structure(first, last)
    except (TypeError, ValueError):
        raise DataError(
            f"{what} gives {_names(first)} for its first row and {_names(last)} for its last; every row must have the same."
        ) from None
    pairs = zip(tf.nest.flatten(first), tf.nest.flatten(last), strict=True)
    specs = [_spec(one, other, rows, what) for one, other in pairs]
    return tf.nest.pack_sequence_as(first, specs)


def _spec(one: np.ndarray, other: np.ndarray, rows: int | None, what: str) -> tf.TensorSpec:
    if one.dtype != other.dtype or one.ndim != other.ndim or one.ndim == 0:
        raise DataError(
            f"{what} gives {_shown(one)} for its first row and {_shown(other)} for its last; every row must have the same type and "
            "number of dimensions."
        )
    sides = [a if a == b else None for a, b in zip(one.shape[1:], other.shape[1:], strict=True)]
    return tf.TensorSpec((rows, *sides), dtype_of(one))


def dtype_of(array: np.ndarray) -> tf.DType:
    """TensorFlow's type of an array from `as_arrays`."""
    return tf.string if array.dtype.kind == "O" else tf.as_dtype(array.dtype)


def tensors(read: Callable[[int], list[np.ndarray]], number: tf.Tensor, spec: Structure) -> Structure:
    """`read(number)`, called by TensorFlow's threads, as tensors of `spec`.

    Args:
        read: a number to the arrays of `spec`, in the order of `tf.nest.flatten`; its DataError arrives as one of TensorFlow's.
    """
    flat = tf.nest.flatten(spec)

    def called(n: np.ndarray) -> list[np.ndarray]:
        with SignalsAsErrors(tf.errors.OutOfRangeError):  # to TensorFlow the end of the data
            return read(int(n))

    found = tf.numpy_function(called, [number], [one.dtype for one in flat])
    shaped = [tf.ensure_shape(t, one.shape) for t, one in zip(found, flat, strict=True)]
    return tf.nest.pack_sequence_as(spec, shaped)


class Check:
    """Whether batches are what a spec promises; one that is like the one before costs next to nothing.

    Args:
        what: where they come from, for the message.
    """

    def __init__(self, spec: Structure, what: str) -> None:
        self.spec, self.what = spec, what
        self._passed: list[tuple[np.dtype, tuple[int, ...]]] = []

    def __call__(self, batch: Structure) -> list[np.ndarray]:
        """The arrays of a batch, in the order of `tf.nest.flatten`. Raises DataError."""
        try:
            tf.nest.assert_same_structure(batch, self.spec)
        except (TypeError, ValueError):
            raise DataError(
                f"{self.what} gives {_names(batch)} after {_names(self.spec)}; every row must have the same."
            ) from None
        arrays: list[np.ndarray] = tf.nest.flatten(batch)
        kinds = [(array.dtype, array.shape) for array in arrays]
        if kinds != self._passed:
            self._compare(arrays)
            self._passed = kinds
        return arrays

    def _compare(self, arrays: list[np.ndarray]) -> None:
        for array, one in zip(arrays, tf.nest.flatten(self.spec), strict=True):
            if dtype_of(array) != one.dtype or not one.shape.is_compatible_with(array.shape):
                raise DataError(
                    f"{self.what} gives {_shown(array)} where its first and last row promise {one.dtype.name} {list(one.shape)}; pad "
                    "the rows of a batch to one shape."
                )


def _names(structure: Structure) -> str:
    if isinstance(structure, dict):
        return "{" + ", ".join(sorted(map(str, structure))) + "}"
    return f"a tuple of {len(structure)}" if isinstance(structure, tuple) else "one array"


def _shown(array: np.ndarray) -> str:
    return f"{dtype_of(array).name} {list(array.shape)}"
