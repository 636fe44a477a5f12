"""Batches of a map-style data set (`__len__` and `__getitem__`): its samples, put together by its collate function."""

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from train_anywhere.data.array_data import stack
from train_anywhere.data.dataset import DataSet
from train_anywhere.data.order import random_numbers
from train_anywhere.data.tf.arrays import Structure


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
