"""Batches of a map-style data set (`__len__` and `__getitem__`): its samples, put together by its collate function."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, default_collate

from src.data.base import DataSet
from src.data.torch_arrays import check_rows, to_arrays, to_tensors

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
        if isinstance(self.dataset, DataSet):
            rows = self.dataset.read(indices, epoch, train)
            check_rows(rows, len(indices))
            return to_tensors(self.prepare(rows) if self.prepare else rows)
        rows = self._samples(indices.tolist(), epoch)
        return to_tensors(self.prepare(to_arrays(rows))) if self.prepare else rows

    def _samples(self, indices: list[int], epoch: int) -> Any:
        collate = self.collate or getattr(self.dataset, "collate_fn", None) or default_collate
        samples = []
        with random_states_kept():
            for index in indices:
                _seed(self.seed, epoch, index)
                samples.append(self.dataset[index])
            return collate(samples)


@contextmanager
def random_states_kept() -> Iterator[None]:
    """What is drawn within the block changes no random number after it."""
    states = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.default_generator.set_state(states[2])


def _seed(*numbers: int) -> None:
    first, second, third = np.random.SeedSequence(numbers).generate_state(3)
    random.seed(int(first))
    np.random.seed(int(second))
    torch.default_generator.manual_seed(int(third))
