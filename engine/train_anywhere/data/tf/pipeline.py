"""A data set as a `tf.data` pipeline of whole batches, in the order of `train_anywhere.data.order.assignment`.

The samples of a map-style data set (`__len__` and `__getitem__`) are put together by its collate function.
"""

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from train_anywhere.data.array_data import stack
from train_anywhere.data.dataset import DataSet
from train_anywhere.data.order.assignment import BatchOrder
from train_anywhere.data.order.random_numbers import read_samples
from train_anywhere.errors import DataError, SignalsAsErrors

Structure = Any
"""Arrays or tensors in a tuple or a dict, which may be nested."""

ENDLESS = np.iinfo(np.int64).max
"""A batch number that is never reached."""


def read_batches(
    dataset: DataSet,
    order: BatchOrder,
    workers: int | str,
    start: int = 0,
    stop: int = ENDLESS,
    per_epoch: int = ENDLESS,
) -> tf.data.Dataset:
    """Return a rank's batches from `start` to `stop`, of which each epoch has `per_epoch`. For training if `order` drops the last batch.

    Raises:
        DataError: the rows differ in structure, or an evaluation has fewer rows than there are ranks.
    """
    length, train = len(dataset), order.drop_last
    even = train or length % order.batch_size == 0 or stop < order.batches(length)
    spec = row_spec(dataset, order.batch_per_rank if even else None, train)

    def read(position: int) -> list[np.ndarray]:
        epoch, batch = divmod(position, per_epoch)
        rows = dataset.read(order.rows(length, epoch, batch), epoch, train)
        return flatten_as(spec, to_arrays(rows, "data"))

    threads = tf.data.AUTOTUNE if isinstance(workers, str) else max(1, workers)
    numbers = tf.data.Dataset.range(start, stop)
    batches = numbers.map(lambda n: tensors(read, n, spec), threads, deterministic=True).prefetch(2)
    return batches.with_options(ordered_options())


def row_spec(dataset: DataSet, rows: int | None, train: bool) -> Structure:
    """Return a `tf.TensorSpec` for each array of a batch, from the first and the last row, which are batches of one.

    A dimension in which the two differ is None: any length. `rows` is the number of rows of all batches, None if it varies.
    Raises DataError: the two rows differ in structure, type or number of dimensions.
    """
    ends = (np.array([n]) for n in (0, len(dataset) - 1))
    first, last = (to_arrays(dataset.read(end, 0, train), "data") for end in ends)
    free = [tf.TensorSpec([None] * max(1, one.ndim), _dtype_of(one)) for one in tf.nest.flatten(first)]
    flatten_as(tf.nest.pack_sequence_as(first, free), last)
    return tf.nest.map_structure(lambda one, other: common_spec(one, other, rows), first, last)


def ordered_options() -> tf.data.Options:
    """Return options that keep the order of batches and prevent sharding, since the rows are already this rank's."""
    options = tf.data.Options()
    options.deterministic = True
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options


@contextmanager
def plain_data_errors() -> Iterator[None]:
    """Raise the DataError of a reader, which TensorFlow quotes inside its error."""
    try:
        yield
    except tf.errors.OpError as error:
        found = re.search(r"DataError: (.+)", error.message or "")
        if found is None:
            raise
        raise DataError(found.group(1)) from None


class Samples:
    """A `DataSet` of a map-style data set's samples, put together by its `collate_fn`, or stacked.

    When stacked, Python's and numpy's float64 numbers become float32, as in `keras.Model.fit`. A sample augmented with Python's or
    numpy's random numbers is the same for the same (seed, epoch, index), also after a resume.
    """

    def __init__(self, dataset: Any, seed: int) -> None:
        self.dataset, self.seed = dataset, seed
        self._drawing = threading.Lock()  # all threads share the process's random states

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, indices: np.ndarray, epoch: int, train: bool) -> Structure:
        """Return the samples of `indices` (int64 [n]) as one batch."""
        with self._drawing:
            return read_samples(self.dataset, indices, self.seed, epoch, stack)


def to_data_set(split: Any, seed: int) -> DataSet | None:
    """Return a split as a `DataSet`, with the seed of the run; None if it is not read by index."""
    if isinstance(split, tf.data.Dataset | keras.utils.PyDataset):
        return None
    if isinstance(split, DataSet):
        return split
    by_index = hasattr(split, "__len__") and hasattr(split, "__getitem__")
    return Samples(split, seed) if by_index and not isinstance(split, Mapping | str) else None


# --- batches of arrays as tensors, with the types and shapes of the first and the last row ---


def to_arrays(structure: Structure, what: str) -> Structure:
    """Return the same structure with numpy arrays of types that TensorFlow has; strings become bytes.

    `what` is the source of the arrays, for the message. Raises DataError: an array holds Python objects.
    """
    if isinstance(structure, dict):
        return {name: to_arrays(value, what) for name, value in structure.items()}
    # lists become tuples, as in Keras; TensorFlow would make arrays of them
    if isinstance(structure, tuple | list):
        values = [to_arrays(value, what) for value in structure]
        return type(structure)(*values) if hasattr(structure, "_fields") else tuple(values)
    return tf.nest.map_structure(lambda leaf: _to_array(leaf, what), structure)


def _to_array(leaf: Any, what: str) -> np.ndarray:
    array = np.asarray(leaf)
    if array.dtype.kind not in "USO":
        return array
    values = array.astype(object).ravel().tolist()
    if others := [v for v in values if not isinstance(v, str | bytes)]:
        raise DataError(
            f"{what} returns a value of type {type(others[0]).__name__}, which can't be a tensor; return numbers, strings or arrays of "
            "them, or add a collate_fn that does."
        )
    encoded = [v.encode(errors="surrogatepass") if isinstance(v, str) else v for v in values]
    return np.array(encoded, object).reshape(array.shape)


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
