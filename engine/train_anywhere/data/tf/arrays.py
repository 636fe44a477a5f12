"""Convert batches of arrays to tensors, with the types and shapes of the first and the last row."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from train_anywhere.errors import DataError, SignalsAsErrors

Structure = Any
"""Arrays or tensors in a tuple or a dict, which may be nested."""


def to_arrays(structure: Structure, what: str) -> Structure:
    """Return the same structure with numpy arrays of types that TensorFlow has; strings become bytes.

    `what` is the source of the arrays, for the message. Raises DataError: an array holds Python objects.
    """
    if isinstance(structure, np.ndarray):
        return _to_array(structure, what)
    if isinstance(structure, dict):
        return {name: to_arrays(value, what) for name, value in structure.items()}
    # lists become tuples, as in Keras; TensorFlow would make arrays of them
    if isinstance(structure, tuple | list):
        values = [to_arrays(value, what) for value in structure]
        return type(structure)(*values) if hasattr(structure, "_fields") else tuple(values)
    return tf.nest.map_structure(lambda leaf: _to_array(leaf, what), structure)


def _to_array(leaf: Any, what: str) -> np.ndarray:
    array = np.asarray(leaf)
    if array.dtype.kind == "U":
        return np.char.encode(array, "utf-8", "surrogatepass").astype(object)
    if array.dtype.kind == "O" and not all(isinstance(v, str | bytes) for v in array.flat):
        found = type(next(v for v in array.flat if not isinstance(v, str | bytes))).__name__
        raise DataError(
            f"{what} returns a value of type {found}, which can't be a tensor; return numbers, strings or arrays of them, or add a "
            "collate_fn that does."
        )
    if array.dtype.kind == "O":
        encoded = [v.encode(errors="surrogatepass") if isinstance(v, str) else v for v in array.flat]
        return np.array(encoded, object).reshape(array.shape)
    return array.astype(object) if array.dtype.kind == "S" else array


def batch_spec(first: Structure, last: Structure, rows: int | None) -> Structure:
    """Return a `tf.TensorSpec` for each array of a batch, from the first and the last row, which are batches of one.

    A dimension in which the two differ is None: any length. `rows` is the number of rows of all batches, None if it varies.
    Raises DataError: the two rows differ in structure, type or number of dimensions.
    """
    free = [tf.TensorSpec([None] * max(1, one.ndim), _dtype_of(one)) for one in tf.nest.flatten(first)]
    flatten_as(tf.nest.pack_sequence_as(first, free), last)
    return tf.nest.map_structure(lambda one, other: common_spec(one, other, rows), first, last)


def common_spec(one: np.ndarray, other: np.ndarray, rows: int | None = None) -> tf.TensorSpec:
    """Return the spec that fits two batches of an array, with this number of rows; None: any number."""
    sides = [a if a == b else None for a, b in zip(one.shape[1:], other.shape[1:], strict=True)]
    return tf.TensorSpec([rows, *sides] if one.ndim else [], _dtype_of(one))


def _dtype_of(array: np.ndarray) -> tf.DType:
    return tf.string if array.dtype.kind == "O" else tf.as_dtype(array.dtype)


def tensors(read: Callable[[int], list[np.ndarray]], number: tf.Tensor, spec: Structure) -> Structure:
    """Return `read(number)`, called by TensorFlow's threads, as tensors of `spec`.

    `read` returns the arrays of `spec` in the order of `tf.nest.flatten`; its DataError is raised as an error of TensorFlow.
    """
    flat = tf.nest.flatten(spec)

    def call(n: np.ndarray) -> list[np.ndarray]:
        with SignalsAsErrors(tf.errors.OutOfRangeError):  # TensorFlow would take it for the end of the data
            return read(int(n))

    found = tf.numpy_function(call, [number], [one.dtype for one in flat])
    shaped = [tf.ensure_shape(t, one.shape) for t, one in zip(found, flat, strict=True)]
    return tf.nest.pack_sequence_as(spec, shaped)


def flatten_as(spec: Structure, batch: Structure) -> list[np.ndarray]:
    """Return the arrays of a batch, in the order of `tf.nest.flatten`. Raises DataError unless they match the spec of other rows."""
    try:
        tf.nest.assert_same_structure(batch, spec)
    except (TypeError, ValueError):
        raise DataError(
            f"data returns {_names(batch)} after {_names(spec)}; every row must have the same."
        ) from None
    arrays: list[np.ndarray] = tf.nest.flatten(batch)
    for array, one in zip(arrays, tf.nest.flatten(spec), strict=True):
        if (kind := _dtype_of(array)) != one.dtype or not one.shape.is_compatible_with(array.shape):
            raise DataError(
                f"data returns {kind.name} {list(array.shape)} after {one.dtype.name} {list(one.shape)}; every row must have the same type "
                "and number of dimensions, and the rows of a batch one shape: pad them."
            )
    return arrays


def _names(structure: Structure) -> str:
    if isinstance(structure, dict):
        return "{" + ", ".join(sorted(map(str, structure))) + "}"
    return f"a tuple of {len(structure)}" if isinstance(structure, tuple) else "one array"
