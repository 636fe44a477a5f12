"""Data that brings its own batches, `tf.data.Dataset`, `keras.utils.PyDataset` or an iterable: read as it is, by one process.

Its position is kept by skipping: a resumed run reads what was read before, and leaves it out.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from train_anywhere.data.tf.arrays import Structure, as_arrays, dtype_of
from train_anywhere.data.tf.pipeline import ordered
from train_anywhere.errors import DataError, user_error


def is_stream(part: Any) -> bool:
    """Whether a part of `Splits` is of this kind."""
    if isinstance(part, tf.data.Dataset | keras.utils.PyDataset):
        return True
    by_index = hasattr(part, "__len__") and (hasattr(part, "__getitem__") or hasattr(part, "read"))
    return not by_index and hasattr(part, "__iter__")


class Stream:
    """Batches in the order in which they come.

    Args:
        part: what `data._target_` returned.
        name: of the part, for the messages.

    Raises:
        DataError: it can't be read again for another epoch, as an evaluation must be.
    """

    def __init__(self, part: Any, name: str) -> None:
        self.part, self.name = part, name
        self._first: list[Structure] = []
        if name != "train" and hasattr(part, "__next__"):
            raise DataError(
                f"the {name} data is a {type(part).__name__}, which can be read once only, and every validation reads it from the "
                "beginning; give a tf.data.Dataset, a PyDataset or rows that are read by index."
            )

    @property
    def length(self) -> int | None:
        """Batches of an epoch; None where it does not say."""
        if isinstance(self.part, tf.data.Dataset):
            count = int(self.part.cardinality())
            return count if count >= 0 else None
        if isinstance(self.part, keras.utils.PyDataset):
            return self.part.num_batches
        return len(self.part) if hasattr(self.part, "__len__") else None

    def training(self, per_epoch: int, done: int) -> tf.data.Dataset:
        """Endless batches after the first `done`; an epoch begins anew where it has `per_epoch` by its own count."""
        if isinstance(self.part, tf.data.Dataset):
            one = self.part.take(per_epoch) if self.length is not None else self.part
            return one.repeat().skip(done).prefetch(2).with_options(ordered())
        return self._dataset(lambda: self._endless(per_epoch)).skip(done).prefetch(2)

    def evaluation(self, limit: int) -> tf.data.Dataset:
        """The first `limit` batches."""
        if isinstance(self.part, tf.data.Dataset):
            return self.part.take(limit).with_options(ordered())
        return self._dataset(lambda: itertools.islice(self._once(), limit))

    def _endless(self, per_epoch: int) -> Iterator[Structure]:
        while True:
            read = 0
            for batch in itertools.islice(self._once(), per_epoch if self.length is not None else None):
                read += 1
                yield batch
            if isinstance(self.part, keras.utils.PyDataset):
                self.part.on_epoch_end()
            if not read or hasattr(self.part, "__next__"):
                raise DataError(
                    f"the {self.name} data, a {type(self.part).__name__}, has ended, and can't be read again; give one that goes on, or "
                    "train for fewer steps with trainer.max_steps."
                )

    def _once(self) -> Iterator[Structure]:
        first, self._first = self._first, []
        yield from first
        if isinstance(self.part, keras.utils.PyDataset):
            numbers = itertools.count() if self.part.num_batches is None else range(self.part.num_batches)
            batches = (self.part[number] for number in numbers)
        else:
            batches = iter(self.part)
        for batch in batches:
            yield as_arrays(batch, f"the {self.name} data")

    def _dataset(self, batches: Any) -> tf.data.Dataset:
        spec = tf.nest.map_structure(common_spec, *self._peek())

        def called() -> Iterator[Structure]:
            try:
                yield from batches()
            except tf.errors.OutOfRangeError as error:  # to TensorFlow the end of the data
                raise user_error(error) from error

        return tf.data.Dataset.from_generator(called, output_signature=spec).with_options(ordered())

    def _peek(self) -> tuple[Structure, Structure]:
        """Two batches, which are read again."""
        found = list(itertools.islice(self._once(), 2))
        if not found:
            raise DataError(f"the {self.name} data, a {type(self.part).__name__}, is empty.")
        if hasattr(self.part, "__next__"):
            self._first = found
        return found[0], found[-1]


def common_spec(one: np.ndarray, other: np.ndarray) -> tf.TensorSpec:
    """What two batches of an array have in common; a batch has any number of rows."""
    sides = [a if a == b else None for a, b in zip(one.shape[1:], other.shape[1:], strict=True)]
    return tf.TensorSpec([None, *sides] if one.ndim else [], dtype_of(one))
