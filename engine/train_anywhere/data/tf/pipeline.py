"""A data set as a `tf.data` pipeline of whole batches, in the order of `train_anywhere.data.order.assignment`."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import tensorflow as tf

from train_anywhere.data.dataset import DataSet
from train_anywhere.data.tf.arrays import SpecCheck, Structure, batch_spec, tensors, to_arrays
from train_anywhere.data.tf.groups import group_batches, group_size
from train_anywhere.errors import DataError


def pipeline(
    read: Callable[[int], Structure], spec: Structure, start: int, stop: int, workers: int
) -> tf.data.Dataset:
    """Return `read(n)` for each n from `start` to `stop` in order; without workers, several small batches are read in one call."""
    check = SpecCheck(spec, "data")

    def one(position: int) -> list[np.ndarray]:
        return check(read(position))

    if workers == 0 and (most := group_size(spec)) > 1:
        batches = group_batches(one, spec, start, stop, most)
    else:
        numbers, threads = tf.data.Dataset.range(start, stop), max(1, workers)
        batches = numbers.map(lambda n: tensors(one, n, spec), threads, deterministic=True).prefetch(2)
    return batches.with_options(ordered_options())


def row_spec(dataset: DataSet, rows: int | None, train: bool) -> Structure:
    """Return types and shapes of a batch of `rows`, from the first and the last row. Raises DataError."""
    ends = (np.array([n]) for n in (0, len(dataset) - 1))
    first, last = (to_arrays(dataset.read(end, 0, train), "data") for end in ends)
    return batch_spec(first, last, rows, "data")


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
