"""A data set as a `tf.data` pipeline of whole batches, in the order of `train_anywhere.data.order.assignment`."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import tensorflow as tf

from train_anywhere.data.dataset import Arrays, DataSet
from train_anywhere.data.order.assignment import BatchOrder, batches_per_epoch
from train_anywhere.data.order.batch_check import check_batch
from train_anywhere.data.tf.arrays import SpecCheck, Structure, batch_spec, tensors, to_arrays
from train_anywhere.data.tf.groups import ENDLESS, group_batches, group_size
from train_anywhere.errors import DataError

Prepare = Callable[[Arrays], Arrays]


def tf_dataset(
    dataset: DataSet,
    order: BatchOrder,
    *,
    prepare: Prepare | None = None,
    workers: int = 0,
    start_epoch: int = 0,
    start_batch: int = 0,
    epochs: int | None = None,
    limit_batches: int | None = None,
) -> tf.data.Dataset:
    """Return the batches of a rank: (the result of the data set's `read`, weight float32 [b]), b = `order.batch_per_rank`.

    Types and shapes are those of the first and the last row, which are read here; a dimension in which they differ is None.
    For tf.distribute, call it inside `distribute_datasets_from_function`: it has only this rank's rows.

    Args:
        dataset: the data set to read.
        order: assigns rows to batches and ranks.
        prepare: the task's function that changes a batch after it is read.
        workers: number of threads, each reading a batch.
        start_epoch: epoch of the first batch, from 0.
        start_batch: number of the first batch in its epoch, from 0.
        epochs: stop before this epoch; None: endless.
        limit_batches: number of batches in each epoch; None: all.

    Raises:
        DataError: the batch size does not fit the ranks or the data, or the rows differ in structure.
    """
    check_batch(len(dataset), order.batch_size, order.world_size, order.train)
    whole = batches_per_epoch(len(dataset), order.batch_size)
    per_epoch = min(whole, whole if limit_batches is None else limit_batches)
    sizes = getattr(dataset, "sizes", None)
    rows = _reader(dataset, prepare, order.train)

    def read(position: int) -> tuple[Structure, np.ndarray]:
        epoch, batch = divmod(position, per_epoch)
        indices, weights = order.rows(len(dataset), epoch, batch, sizes)
        return rows(indices, epoch), weights

    spec = (
        row_spec(dataset, order.batch_per_rank, prepare, order.train),
        tf.TensorSpec(order.batch_per_rank, tf.float32),
    )
    stop = ENDLESS if epochs is None else epochs * per_epoch
    return pipeline(read, spec, start_epoch * per_epoch + start_batch, stop, workers)


def pipeline(
    read: Callable[[int], Structure], spec: Structure, start: int, stop: int, workers: int
) -> tf.data.Dataset:
    """Return `read(n)` for each n from `start` to `stop` in order; without workers, several small batches are read in one call."""
    check = SpecCheck(spec, "data")

    def one(position: int) -> list[np.ndarray]:
        return check(read(position))

    if workers == 0 and (most := group_size(spec)) > 1:
        batches = group_batches(one, spec, start, stop, most)
    else:
        numbers, threads = tf.data.Dataset.range(start, stop), max(1, workers)
        batches = numbers.map(lambda n: tensors(one, n, spec), threads, deterministic=True).prefetch(2)
    return batches.with_options(ordered_options())


def row_spec(dataset: DataSet, rows: int | None, prepare: Prepare | None, train: bool) -> Structure:
    """Return types and shapes of a batch of `rows`, from the first and the last row. Raises DataError."""
    read = _reader(dataset, prepare, train)
    first, last = (read(np.array([n]), 0) for n in (0, len(dataset) - 1))
    return batch_spec(first, last, rows, "data")


def _reader(dataset: DataSet, prepare: Prepare | None, train: bool) -> Callable[[np.ndarray, int], Structure]:
    def read(indices: np.ndarray, epoch: int) -> Structure:
        batch = to_arrays(dataset.read(indices, epoch, train), "data")
        return to_arrays(prepare(batch), "task.prepare") if prepare else batch

    return read


def ordered_options() -> tf.data.Options:
    """Return options that keep the order of batches and prevent sharding, since the rows are already this rank's."""
    options = tf.data.Options()
    options.deterministic = True
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options


@contextmanager
def plain_data_errors() -> Iterator[None]:
    """Raise the DataError of a reader, which TensorFlow quotes inside its error."""
    try:
        yield
    except tf.errors.OpError as error:
        found = re.search(r"DataError: (.+)", error.message or "")
        if found is None:
            raise
        raise DataError(found.group(1)) from None
