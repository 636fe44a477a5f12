"""A data set as a `tf.data` pipeline of whole batches, in the order of `train_anywhere.data.order.assignment`.

The samples of a map-style data set (`__len__` and `__getitem__`) are put together by its collate function.
"""

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from train_anywhere.data.array_data import stack
from train_anywhere.data.dataset import DataSet
from train_anywhere.data.order import random_numbers
from train_anywhere.data.order.assignment import BatchOrder
from train_anywhere.data.tf.arrays import Structure, batch_spec, flatten_as, tensors, to_arrays
from train_anywhere.errors import DataError

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
    """Return types and shapes of a batch of `rows`, from the first and the last row. Raises DataError."""
    ends = (np.array([n]) for n in (0, len(dataset) - 1))
    first, last = (to_arrays(dataset.read(end, 0, train), "data") for end in ends)
    return batch_spec(first, last, rows)


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
        samples = []
        with self._drawing, random_numbers.preserve():
            for index in indices.tolist():
                random_numbers.reseed(self.seed, epoch, index)
                samples.append(self.dataset[index])
            collate = getattr(self.dataset, "collate_fn", None)
            return collate(samples) if collate else stack(samples)


def to_data_set(split: Any, seed: int) -> DataSet | None:
    """Return a split as a `DataSet`, with the seed of the run; None if it can't be read by index."""
    if isinstance(split, DataSet):
        return split
    by_index = hasattr(split, "__len__") and hasattr(split, "__getitem__")
    return Samples(split, seed) if by_index and not isinstance(split, Mapping | str) else None
