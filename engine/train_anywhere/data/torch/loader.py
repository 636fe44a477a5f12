"""A data set as a PyTorch DataLoader of whole batches, in the order of `train_anywhere.data.order.assignment`."""

import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, SequentialSampler, default_collate, default_convert
from torch.utils.data.distributed import DistributedSampler

from train_anywhere.config.checks.contradictions import batch_size_problem
from train_anywhere.data.array_data import map_leaves
from train_anywhere.data.known import too_large
from train_anywhere.data.order.assignment import BatchOrder
from train_anywhere.data.torch.random_states import read_samples
from train_anywhere.errors import DataError, SignalsAsErrors


# Lightning's overfit_batches replaces any but a SequentialSampler, and several ranks any but a DistributedSampler
class EpochSampler(SequentialSampler, DistributedSampler[Any]):
    """The (epoch, batch) pairs of one epoch. Workers get the epoch from the pair, so they can persist across epochs.

    `len` is always a whole epoch; only the one of `start_at`, in which a run resumes, starts at a later batch.
    """

    def __init__(self, batches: int) -> None:
        self.batches = batches
        self.start_at(0, 0)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; Lightning calls this."""
        self.epoch = epoch

    def start_at(self, epoch: int, batch: int) -> None:
        """Start at a batch of an epoch, both from 0."""
        self.epoch = self.start_epoch = epoch
        self.start_batch = batch

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[tuple[int, int]]:  # type: ignore[override]
        first = self.start_batch if self.epoch == self.start_epoch else 0
        return ((self.epoch, batch) for batch in range(first, self.batches))


@dataclass(frozen=True)
class Batches(Dataset[Any]):
    """Maps (epoch, batch) to this rank's batch, in any process.

    A random or augmented sample is the same for the same (seed, epoch, index): on any number of ranks and workers, and after a resume.

    Attributes:
        dataset: a `DataSet`, or a map-style data set, whose samples its `collate_fn` puts together, else torch's function.
        order: assigns the rows. They may be augmented if it drops the last batch, as for training.
    """

    dataset: Any
    order: BatchOrder

    def __len__(self) -> int:
        """Return the number of batches of an epoch. Raises DataError if there are too few rows for the ranks."""
        return self.order.batches(len(self.dataset))

    def __getitem__(self, key: tuple[int, int]) -> Any:
        """Return the batch `key`, or a DataError: if raised, DataLoader would wrap it into the traceback of a worker."""
        try:
            with SignalsAsErrors():
                return self.read(self.order.rows(len(self.dataset), *key), key[0])
        except DataError as error:
            return error

    def read(self, indices: np.ndarray, epoch: int) -> Any:
        """Return the rows of `indices` (int64 [n]) as tensors, in the tuples and dicts of the data set. Raises DataError."""
        if hasattr(self.dataset, "read"):
            rows = self.dataset.read(indices, epoch, self.order.drop_last)
            check_rows(rows, len(indices))
            return to_tensors(rows)
        return default_convert(read_samples(self.dataset, indices, self.order.seed, epoch, default_collate))


class BatchLoader(DataLoader[Any]):
    """A DataLoader that raises the DataError of a worker."""

    dataset: Batches
    num_workers: int
    most: int | None = None
    """The most processes; None: their number does not change."""

    def __iter__(self) -> Any:
        """Iterate over the batches in order."""
        batches = super().__iter__()
        for batch in batches if self.most is None else self._adapt(batches, self.most):
            if isinstance(batch, DataError):
                raise batch
            yield batch

    def _adapt(self, batches: Iterator[Any], most: int) -> Iterator[Any]:
        """Yield the batches of an epoch. If steps wait for more than `WAIT_SHARE` of it, the next one has the processes it needs.

        If n processes keep steps waiting for a share w of the time, n / (1 - w) of them read as fast as steps compute.
        """
        waited, began = 0.0, time.perf_counter()
        arrived = first = began
        try:
            for number, batch in enumerate(batches):
                arrived = time.perf_counter()
                first = first if number else arrived  # the processes have started
                waited += arrived - began if number else 0.0
                yield batch
                began = time.perf_counter()
        finally:
            share = waited / max(arrived - first, 1e-9)
            if share > WAIT_SHARE:
                needed = math.ceil(self.num_workers / max(1 - share, 0.001))
                self.num_workers = min(most, max(needed, self.num_workers + 1))


WAIT_SHARE = 0.02
"""Share of an epoch that steps may wait for data with `data.workers=auto`."""


def _unchanged(batch: Any) -> Any:
    """Return the batch, which has tensors already: torch's default search for arrays takes as long as reading a small batch."""
    return batch


def torch_loader(batches: Batches, *, workers: int | Literal["auto"] = 0, ranks: int = 1) -> BatchLoader:
    """Return a loader of a rank's batches; a Trainer needs `use_distributed_sampler=False`, since they are this rank's already.

    `workers` is the number of reading processes, 0 for none, or auto: it grows up to the CPUs of the rank less one, for one of several
    `ranks` of its node. Raises DataError: the batch size does not fit the ranks or the data.
    """
    order = batches.order
    size, ranks_of_run = order.batch_size, order.world_size
    problem = batch_size_problem(size, ranks_of_run, "ranks")
    if order.drop_last:
        problem = problem or too_large(len(batches.dataset), size, ranks_of_run)
    if problem:
        raise DataError(problem)
    loader = BatchLoader(
        batches,
        batch_size=None,
        collate_fn=_unchanged,
        sampler=EpochSampler(len(batches)),
        num_workers=1 if workers == "auto" else workers,
        persistent_workers=workers not in ("auto", 0),
        pin_memory=torch.cuda.is_available(),
    )
    if workers == "auto" and order.drop_last:
        cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        loader.most = max(1, int(os.environ.get("SLURM_CPUS_PER_TASK") or cpus // ranks) - 1)
    return loader


STRINGS = "UTSO"
"""Kinds of numpy types that torch does not have: strings and objects, which become lists."""


def to_tensors(rows: Any) -> Any:
    """Return the same tuples, lists and dicts with arrays and numpy scalars as tensors, and arrays of strings as lists of `str`.

    Raises:
        DataError: an array has a type that torch does not have.
    """
    return map_leaves(rows, lambda v: _tensor(np.asarray(v)) if isinstance(v, np.ndarray | np.generic) else v)


def to_arrays(rows: Any) -> Any:
    """Return the same tuples, lists and dicts with tensors as arrays."""
    return map_leaves(rows, lambda v: v.numpy() if isinstance(v, torch.Tensor) else v)


def check_rows(rows: Any, count: int, path: str = "") -> None:
    """Raise DataError unless `rows` is a tuple or a dict of arrays, each with `count` rows."""
    if isinstance(rows, np.ndarray):
        if rows.shape[:1] != (count,):
            raise DataError(
                f"the data set's read() was called for {count} rows, but its array{path} has the shape {list(rows.shape)}; the first "
                "dimension must be the rows."
            )
    elif isinstance(rows, tuple | list | Mapping):
        for key, value in rows.items() if isinstance(rows, Mapping) else enumerate(rows):
            check_rows(value, count, f"{path}[{key!r}]")
    else:
        raise DataError(
            f"the data set's read() returned a {type(rows).__name__}{path}; it must return a tuple or a dict of numpy arrays."
        )


def _tensor(array: np.ndarray) -> Any:
    if array.dtype.kind in STRINGS:
        return array.tolist()
    if not (array.dtype.isnative and array.flags.carray):
        array = np.require(array, array.dtype.newbyteorder("="), "CAW")
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise DataError(
            f"the data set's read() returned an array of {array.dtype}, a type that torch does not have; convert it in read()."
        ) from error
