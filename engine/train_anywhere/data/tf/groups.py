"""Read several small batches in one call from TensorFlow to Python, since the call takes longer than reading one of them.

The result is the same: batches come in the same order, and one that can't be read raises its error when it is requested.
"""

import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from train_anywhere.data.order.prefetch import MAX_BATCHES, MAX_GROUP_S
from train_anywhere.data.tf.arrays import Structure, tensors

ENDLESS = np.iinfo(np.int64).max
"""A batch number that is never reached."""

GROUP_BYTES = 2**22
"""The most bytes of the batches in one call; up to four groups exist: one is read, two wait, one is split into batches."""

Read = Callable[[int], list[np.ndarray]]
"""Returns the arrays of a batch, in the order of `tf.nest.flatten`, from its number."""


def group_size(spec: Structure) -> int:
    """Return the number of batches of these types and shapes to read at once; 1 if they are large or of unknown size."""
    flat = tf.nest.flatten(spec)
    if any(one.dtype == tf.string or not one.shape.is_fully_defined() for one in flat):
        return 1
    size = sum(one.shape.num_elements() * one.dtype.size for one in flat)
    return int(max(1, min(MAX_BATCHES, GROUP_BYTES // max(1, size))))


def group_batches(read: Read, spec: Structure, start: int, stop: int, most: int) -> tf.data.Dataset:
    """Return the batches from `start` to `stop` in order, reading up to `most` in one call; all shapes in `spec` must be known."""
    several = tf.nest.map_structure(lambda one: tf.TensorSpec([None, *one.shape], one.dtype), spec)
    none = [np.empty([0, *one.shape], one.dtype.as_numpy_dtype) for one in tf.nest.flatten(spec)]

    def read_next(first: int) -> list[np.ndarray]:
        return read_group(read, first, min(first + most, stop)) if first < stop else none

    def next_group(first: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, Structure]:
        group = tensors(read_next, first, several)
        return first + tf.shape(tf.nest.flatten(group)[0], tf.int64)[0], group

    numbers = tf.data.Dataset.range(start, stop)  # enough for all groups: each has at least one batch
    options = tf.data.Options()
    # passing batches to one more thread costs more than splitting groups
    options.experimental_optimization.inject_prefetch = False
    groups = numbers.scan(tf.constant(start, tf.int64), next_group).prefetch(2)
    batches = groups.unbatch().with_options(options)
    if stop == ENDLESS:
        return batches.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
    return batches.take(stop - start).apply(tf.data.experimental.assert_cardinality(stop - start))


def read_group(read: Read, first: int, stop: int) -> list[np.ndarray]:
    """Return the stacked batches from `first` to before `stop`, or fewer if reading takes long.

    The group ends before a batch that can't be read: that batch starts the next group and raises its error there.
    """
    began = time.monotonic()
    batch = read(first)
    # each batch is copied as soon as it is read, while it is still in the CPU cache
    stacks = [np.empty((stop - first, *array.shape), array.dtype) for array in batch]
    count = 0
    while True:
        for stack, array in zip(stacks, batch, strict=True):
            stack[count] = array
        count += 1
        if first + count == stop or time.monotonic() - began > MAX_GROUP_S:
            break
        try:
            batch = read(first + count)
        except Exception:
            break
    return [stack[:count] for stack in stacks]
