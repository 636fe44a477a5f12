"""Small batches, several of which are read in one call of Python by TensorFlow: the call costs more than reading one of them.

Nobody sees it: batches come in the same order, each read as if it were alone, and one that can't be read is an error where it is asked for.
"""

import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from train_anywhere.data.order.prefetch import LONGEST_S, MOST
from train_anywhere.data.tf.arrays import Structure, tensors

ENDLESS = np.iinfo(np.int64).max
"""The number of a batch that is never reached."""

BYTES = 2**22
"""Of the batches of a call; four such groups exist at most: one is read, two wait, one is taken apart."""

Read = Callable[[int], list[np.ndarray]]
"""The number of a batch to its arrays, in the order of `tf.nest.flatten`."""


def group_size(spec: Structure) -> int:
    """How many batches of these types and shapes may be read at once; 1 where they are large, or their sizes not known."""
    flat = tf.nest.flatten(spec)
    if any(one.dtype == tf.string or not one.shape.is_fully_defined() for one in flat):
        return 1
    size = sum(one.shape.num_elements() * one.dtype.size for one in flat)
    return int(max(1, min(MOST, BYTES // max(1, size))))


def grouped(read: Read, spec: Structure, start: int, stop: int, most: int) -> tf.data.Dataset:
    """The batches from `start` to `stop`, in order, of which up to `most` are read in one call.

    Args:
        spec: types and shapes of a batch, which are all known.
    """
    several = tf.nest.map_structure(lambda one: tf.TensorSpec([None, *one.shape], one.dtype), spec)
    none = [np.empty([0, *one.shape], one.dtype.as_numpy_dtype) for one in tf.nest.flatten(spec)]

    def read_next(first: int) -> list[np.ndarray]:
        return read_group(read, first, min(first + most, stop)) if first < stop else none

    def next_group(first: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, Structure]:
        group = tensors(read_next, first, several)
        return first + tf.shape(tf.nest.flatten(group)[0], tf.int64)[0], group

    numbers = tf.data.Dataset.range(start, stop)  # one for each group, which has a batch at least
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = (
        False  # to hand batches to one more thread costs more than to take groups apart
    )
    groups = numbers.scan(tf.constant(start, tf.int64), next_group).prefetch(2)
    batches = groups.unbatch().with_options(options)
    if stop == ENDLESS:
        return batches.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
    return batches.take(stop - start).apply(tf.data.experimental.assert_cardinality(stop - start))


def read_group(read: Read, first: int, stop: int) -> list[np.ndarray]:
    """Batches from `first` on, before `stop`, stacked.

    They end before one that can't be read, or not as its first and last row promise: that is the first of the next group, and an error.
    """
    began = time.monotonic()
    batch = read(first)
    # Each batch is copied as soon as it is read, while the processor still has it in its cache.
    stacks = [np.empty((stop - first, *array.shape), array.dtype) for array in batch]
    count = 0
    while True:
        for stack, array in zip(stacks, batch, strict=True):
            stack[count] = array
        count += 1
        if first + count == stop or time.monotonic() - began > LONGEST_S:
            break
        try:
            batch = read(first + count)
        except Exception:
            break
    return [stack[:count] for stack in stacks]
