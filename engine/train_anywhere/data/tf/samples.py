"""A map-style data set, `__len__` and `__getitem__`, read as one of whole batches."""

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from train_anywhere.data.dataset import DataSet
from train_anywhere.data.order import random_numbers
from train_anywhere.data.tf.arrays import Structure
from train_anywhere.errors import DataError


class Samples:
    """A `DataSet` of the samples of a map-style one, put together by its `collate_fn`, or stacked.

    Stacked, Python's and numpy's float64 numbers become float32, as in `keras.Model.fit`. A sample that is augmented with
    Python's or numpy's random numbers is the same for the same (seed, epoch, index), also after a resume.
    """

    def __init__(self, dataset: Any, seed: int) -> None:
        self.dataset, self.seed = dataset, seed
        self._drawing = threading.Lock()  # those random states are the process's

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, indices: np.ndarray, epoch: int, train: bool) -> Structure:
        """The samples of `indices` (int64 [n]) as one batch."""
        samples = []
        with self._drawing, random_numbers.kept():
            for index in indices.tolist():
                random_numbers.begin(self.seed, epoch, index)
                samples.append(self.dataset[index])
            collate = getattr(self.dataset, "collate_fn", None)
            return collate(samples) if collate else stack(samples)


def stack(samples: list[Any]) -> Structure:
    """Samples of one structure as a batch of it.

    Raises:
        DataError: their arrays are of different shapes, or the samples of different structure.
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
            f"a row of the data is a {type(first).__name__}, a data set itself; give one each for train, val and test."
        )
    arrays = [np.asarray(sample) for sample in samples]
    if len({a.shape for a in arrays}) > 1:
        shapes = " and ".join(str(list(s)) for s in sorted({a.shape for a in arrays})[:2])
        raise DataError(
            f"the samples of a batch have arrays of different shapes ({shapes}); give the data set a collate_fn that pads them."
        )
    stacked = np.stack(arrays)
    return stacked.astype(np.float32) if stacked.dtype == np.float64 else stacked


def as_dataset(part: Any, seed: int) -> DataSet | None:
    """A part of `Splits` that is read by index, with the seed of the run; None for anything else."""
    if isinstance(part, DataSet):
        return part
    by_index = hasattr(part, "__len__") and hasattr(part, "__getitem__")
    return Samples(part, seed) if by_index and not isinstance(part, Mapping | str) else None
