"""A data set as a `tf.data` pipeline of whole batches, in the order of `train_anywhere.data.order.assignment`."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import tensorflow as tf

from train_anywhere.data.dataset import Arrays, DataSet
from train_anywhere.data.order.assignment import BatchOrder, batches_per_epoch
from train_anywhere.data.order.fits import check_batch
from train_anywhere.data.tf.arrays import Check, Structure, as_arrays, probed_spec, tensors
from train_anywhere.data.tf.groups import ENDLESS, group_size, grouped
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
    """Batches of a rank: (what the data set's `read` gives, weight float32 [b]), b = `order.batch_per_rank`.

    Types and shapes are those of the first and the last row, which are read here; a dimension in which they differ is None.
    For tf.distribute, build it inside `distribute_datasets_from_function`: it is already this rank's part.

    Args:
        prepare: changes a batch where it is read.
        workers: batches that are read at once, by threads.
        start_epoch, start_batch: the first batch, both from 0.
        epochs: the end, before this epoch; None: without end.
        limit_batches: batches of each epoch; None: all.

    Raises:
        DataError: the batch does not suit the ranks or the data, or the rows are not alike.
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
    """`read` of each number from `start` to `stop`, in order; several in one call where nobody works beside it and batches are small."""
    check = Check(spec, "data")

    def one(position: int) -> list[np.ndarray]:
        return check(read(position))

    if workers == 0 and (most := group_size(spec)) > 1:
        batches = grouped(one, spec, start, stop, most)
    else:
        batches = (
            tf.data.Dataset.range(start, stop)
            .map(
                lambda position: tensors(one, position, spec),
                num_parallel_calls=max(1, workers),
                deterministic=True,
            )
            .prefetch(2)
        )
    return batches.with_options(ordered())


def row_spec(dataset: DataSet, rows: int | None, prepare: Prepare | None, train: bool) -> Structure:
    """Types and shapes of a batch of `rows`, from the first and the last row. Raises DataError."""
    read = _reader(dataset, prepare, train)
    first, last = (read(np.array([n]), 0) for n in (0, len(dataset) - 1))
    return probed_spec(first, last, rows, "data")


def _reader(dataset: DataSet, prepare: Prepare | None, train: bool) -> Callable[[np.ndarray, int], Structure]:
    def read(indices: np.ndarray, epoch: int) -> Structure:
        batch = as_arrays(dataset.read(indices, epoch, train), "data")
        return as_arrays(prepare(batch), "task.prepare") if prepare else batch

    return read


def ordered() -> tf.data.Options:
    """Order is part of the contract, and rows are this rank's already: TensorFlow must not shard again."""
    options = tf.data.Options()
    options.deterministic = True
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options


@contextmanager
def plain_data_errors() -> Iterator[None]:
    """Raise the DataError of a reader, which TensorFlow passes on inside the message of its own error."""
    try:
        yield
    except tf.errors.OpError as error:
        found = re.search(r"DataError: (.+)", error.message or "")
        if found is None:
            raise
        raise DataError(found.group(1)) from None
