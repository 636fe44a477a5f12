"""Batches of a map-style data set (`__len__` and `__getitem__`): its samples, put together by its collate function."""

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from train_anywhere.data.dataset import DataSet
from train_anywhere.data.order import random_numbers
from train_anywhere.data.tf.arrays import Structure
from train_anywhere.errors import DataError


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


def stack(samples: list[Any]) -> Structure:
    """Stack samples of the same structure into a batch.

    Raises:
        DataError: the samples differ in structure or in the shapes of their arrays.
    """
    first = samples[0]
    if isinstance(first, Mapping):
        if any(sample.keys() != first.keys() for sample in samples):
            raise DataError("the samples of a batch have different names; give the data set a collate_fn.")
        return {name: stack([sample[name] for sample in samples]) for name in first}
    if isinstance(first, tuple | list):
        if any(len(sample) != len(first) for sample in samples):
            raise DataError("the samples of a batch have different lengths; give the data set a collate_fn.")
        return tuple(stack([sample[n] for sample in samples]) for n in range(len(first)))
    if hasattr(first, "__getitem__") and not (hasattr(first, "__array__") or isinstance(first, str | bytes)):
        raise DataError(
            f"a row of the data is a {type(first).__name__}, a data set itself; return one each for train, val and test."
        )
    arrays = [np.asarray(sample) for sample in samples]
    if len({a.shape for a in arrays}) > 1:
        shapes = " and ".join(str(list(s)) for s in sorted({a.shape for a in arrays})[:2])
        raise DataError(
            f"the samples of a batch have arrays of different shapes ({shapes}); give the data set a collate_fn that pads them."
        )
    stacked = np.stack(arrays)
    return stacked.astype(np.float32) if stacked.dtype == np.float64 else stacked


def to_data_set(split: Any, seed: int) -> DataSet | None:
    """Return a split as a `DataSet`, with the seed of the run; None if it can't be read by index."""
    if isinstance(split, DataSet):
        return split
    by_index = hasattr(split, "__len__") and hasattr(split, "__getitem__")
    return Samples(split, seed) if by_index and not isinstance(split, Mapping | str) else None
