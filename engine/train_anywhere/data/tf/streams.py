"""Data with its own batches (`tf.data.Dataset`, `keras.utils.PyDataset` or an iterable), read in its own order by one process.

A resumed run restores its position by reading and skipping the batches that were used before.
Ranks which split a stream by themselves must read different rows.
"""

import functools
import itertools
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import keras
import tensorflow as tf

from train_anywhere.data.tf.pipeline import Structure, common_spec, ordered_options, to_arrays
from train_anywhere.errors import DataError, user_error


class FirstBatches(keras.utils.PyDataset):
    """The first batches of a PyDataset, whose hooks are called."""

    def __init__(self, inner: keras.utils.PyDataset, count: int) -> None:
        super().__init__(inner.workers, inner.use_multiprocessing, inner.max_queue_size)
        self.inner, self.count = inner, count
        self.on_epoch_begin, self.on_epoch_end = inner.on_epoch_begin, inner.on_epoch_end

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.inner[index]


class Stream:
    """A split with its own batches. Raises DataError for validation or test data that can be read only once."""

    def __init__(self, split: Any, name: str) -> None:
        self.split, self.name = split, name
        self._first: list[Structure] = []
        if name != "train" and hasattr(split, "__next__"):
            raise DataError(
                f"the {name} data is a {type(split).__name__}, which can be read once only, and every validation reads it from the "
                "beginning; return a tf.data.Dataset, a PyDataset or rows that are read by index."
            )

    @property
    def length(self) -> int | None:
        """The number of batches of an epoch; None if the data does not have a length."""
        if isinstance(self.split, tf.data.Dataset):
            count = int(self.split.cardinality())
            return count if count >= 0 else None
        if isinstance(self.split, keras.utils.PyDataset):
            return self.split.num_batches
        return len(self.split) if hasattr(self.split, "__len__") else None

    def for_fit(self, limit: int, repeats: bool = False, stacked: bool = False) -> Any:
        """Return what `fit` or `evaluate` of a single device read: the split itself, if it has a length of up to `limit` batches.

        `repeats`: data without a length is read again at its end; `stacked`: return a tf.data.Dataset.
        """
        split, length = self.split, self.length
        if isinstance(split, keras.utils.PyDataset) and not stacked:
            return split if length == limit else FirstBatches(split, limit)
        if isinstance(split, tf.data.Dataset):
            if length is not None:
                return split if length == limit else split.take(limit)
            return split.repeat() if repeats else split
        return self.batches(limit, repeats)

    def batches(self, limit: int, endless: bool = False) -> tf.data.Dataset:
        """Return the first `limit` batches; `endless`: those of one epoch after the other, or all batches of data without a length."""
        if isinstance(self.split, tf.data.Dataset):
            one = self.split if endless and self.length is None else self.split.take(limit)
            return (one.repeat() if endless else one).with_options(ordered_options())
        spec = tf.nest.map_structure(common_spec, *self._peek())

        def generate() -> Iterator[Structure]:
            try:
                yield from self._endless(limit) if endless else itertools.islice(self._read_once(), limit)
            except tf.errors.OutOfRangeError as error:  # TensorFlow would take it for the end of the data
                raise user_error(error) from error

        return tf.data.Dataset.from_generator(generate, output_signature=spec).with_options(ordered_options())

    def hash_first(self) -> int:
        """Return a hash of 48 bits of the first batch, which is read again later."""
        leaves = tf.nest.flatten(self._peek()[0])
        values = (leaf.astype("S") if leaf.dtype == object else leaf for leaf in leaves)
        return int.from_bytes(blake2b(b"".join(v.tobytes() for v in values), digest_size=6).digest())

    def _endless(self, per_epoch: int) -> Iterator[Structure]:
        own_hooks = isinstance(self.split, keras.utils.PyDataset)
        if own_hooks:  # `fit` calls it before the first epoch, too
            self.split.on_epoch_end()
        while True:
            read = 0
            if own_hooks:
                self.split.on_epoch_begin()
            for batch in itertools.islice(self._read_once(), per_epoch if self.length is not None else None):
                read += 1
                yield batch
            if own_hooks:
                self.split.on_epoch_end()
            if not read or hasattr(self.split, "__next__"):
                raise DataError(
                    f"the {self.name} data, a {type(self.split).__name__}, is exhausted and can't be read again; return one that repeats, "
                    "or train for fewer steps with trainer.max_steps."
                )

    def _read_once(self) -> Iterator[Structure]:
        first, self._first = self._first, []
        yield from first
        if isinstance(self.split, keras.utils.PyDataset):
            numbers = itertools.count() if self.split.num_batches is None else range(self.split.num_batches)
            batches = (self.split[number] for number in numbers)
        elif isinstance(self.split, tf.data.Dataset):
            batches = self.split.as_numpy_iterator()
        else:
            batches = iter(self.split)
        for batch in batches:
            yield to_arrays(batch, f"the {self.name} data")

    def _peek(self) -> tuple[Structure, Structure]:
        """Return the first and the second batch (or the first twice), which are read again later."""
        found = list(itertools.islice(self._read_once(), 2))
        if not found:
            raise DataError(f"the {self.name} data, a {type(self.split).__name__}, is empty.")
        if hasattr(self.split, "__next__"):
            self._first = found
        return found[0], found[-1]


def share_rows(batches: tf.data.Dataset, replicas: range, count: int, train: bool) -> tf.data.Dataset:
    """Return the rows of each batch that belong to `replicas` of `count`, for one replica after the other.

    In training, replicas without a row of a small batch get one of the others'.
    """

    def part(tensor: Any, replica: int) -> Any:
        if not tensor.shape.rank:
            return tensor
        rows = tf.shape(tensor)[0]
        if not train:
            few = f"DataError: a batch has fewer rows than there are ranks, {count}: use fewer ranks, or another batch size."
            with tf.control_dependencies([tf.debugging.assert_greater_equal(rows, count, few)]):
                rows = tf.identity(rows)
        start = tf.minimum(rows * replica // count, rows - 1)
        own = tensor[start : tf.maximum(rows * (replica + 1) // count, start + 1)]
        whole = tensor.shape[0]
        return (
            own if whole is None or whole % count else tf.ensure_shape(own, [whole // count, *own.shape[1:]])
        )

    def parts(*batch: Any) -> tf.data.Dataset:
        structure = batch if len(batch) > 1 else batch[0]
        found = [tf.nest.map_structure(lambda t, n=n: part(t, n), structure) for n in replicas]
        each = [tf.data.Dataset.from_tensors(one) for one in found]
        return functools.reduce(tf.data.Dataset.concatenate, each)

    return batches.flat_map(parts).with_options(ordered_options())
