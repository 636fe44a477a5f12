"""Batches of a map-style data set (`__len__` and `__getitem__`): its samples, put together by its collate function."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset, default_collate, default_convert

from train_anywhere.data.dataset import DataSet
from train_anywhere.data.torch import draws as draws
from train_anywhere.data.torch.arrays import check_rows, to_arrays, to_tensors

Prepare = Callable[[Any], Any] | None
"""What a task does to a batch of arrays before it becomes tensors."""


def is_map_style(part: object) -> bool:
    """Whether rows can be taken by number."""
    there = hasattr(part, "__getitem__") and hasattr(part, "__len__")
    return there and not isinstance(part, IterableDataset | dict)


@dataclass(frozen=True)
class Reader:
    """Reads rows by index, in any process.

    A sample that is drawn or augmented at random is the same for the same (seed, epoch, index): on any number of ranks and workers, and
    after a resume.

    Attributes:
        dataset: a `DataSet`, or a map-style one.
        seed: of the run.
        prepare: of the task; it gets and gives arrays.
        collate: puts samples together; None: the data set's own `collate_fn`, else torch's.
    """

    dataset: Any
    seed: int
    prepare: Prepare = None
    collate: Callable[[list[Any]], Any] | None = None

    def read(self, indices: np.ndarray, epoch: int, train: bool) -> Any:
        """Rows as tensors, in the tuples and dicts of the data set. Raises DataError."""
        if self.by_rows:
            rows = self.dataset.read(indices, epoch, train)
            check_rows(rows, len(indices))
            return to_tensors(self.prepare(rows) if self.prepare else rows)
        rows = self._samples(indices.tolist(), epoch)
        return to_tensors(self.prepare(to_arrays(rows))) if self.prepare else default_convert(rows)

    @cached_property
    def by_rows(self) -> bool:
        """Whether the data set reads whole batches; to ask a protocol takes as long as a small batch's rows."""
        return isinstance(self.dataset, DataSet)

    def _samples(self, indices: list[int], epoch: int) -> Any:
        collate = self.collate or getattr(self.dataset, "collate_fn", None) or default_collate
        samples = []
        with draws.kept():
            for index in indices:
                draws.begin(self.seed, epoch, index)
                samples.append(self.dataset[index])
            return collate(samples)
