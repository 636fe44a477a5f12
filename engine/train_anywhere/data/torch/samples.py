"""Batches of a map-style data set (`__len__` and `__getitem__`): its samples, put together by its collate function."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset, default_collate, default_convert

from train_anywhere.data.dataset import DataSet
from train_anywhere.data.torch import random_states
from train_anywhere.data.torch.arrays import check_rows, to_tensors


def is_map_style(split: object) -> bool:
    """Return whether rows can be read by index."""
    by_index = hasattr(split, "__getitem__") and hasattr(split, "__len__")
    return by_index and not isinstance(split, IterableDataset | dict)


@dataclass(frozen=True)
class Reader:
    """Reads rows by index, in any process.

    A random or augmented sample is the same for the same (seed, epoch, index): on any number of ranks and workers, and after a resume.

    Attributes:
        dataset: a `DataSet`, or a map-style data set.
        seed: the seed of the run.
        collate: puts samples together; None: the data set's `collate_fn`, else torch's.
    """

    dataset: Any
    seed: int
    collate: Callable[[list[Any]], Any] | None = None

    def read(self, indices: np.ndarray, epoch: int, train: bool) -> Any:
        """Return rows as tensors, in the tuples and dicts of the data set. Raises DataError."""
        if self.reads_batches:
            rows = self.dataset.read(indices, epoch, train)
            check_rows(rows, len(indices))
            return to_tensors(rows)
        return default_convert(self._samples(indices.tolist(), epoch))

    @cached_property
    def reads_batches(self) -> bool:
        """True if the data set reads whole batches; cached, since checking a protocol takes as long as reading a small batch."""
        return isinstance(self.dataset, DataSet)

    def _samples(self, indices: list[int], epoch: int) -> Any:
        collate = self.collate or getattr(self.dataset, "collate_fn", None) or default_collate
        samples = []
        with random_states.preserve():
            for index in indices:
                random_states.reseed(self.seed, epoch, index)
                samples.append(self.dataset[index])
            return collate(samples)
