"""Batches without padding and weights, for a model with its own training step, as `keras.Model.fit` would get them."""

import numpy as np
import tensorflow as tf

from train_anywhere.data.dataset import DataSet
from train_anywhere.data.known import check_batch
from train_anywhere.data.order.assignment import BatchOrder, batches_per_epoch
from train_anywhere.data.tf.arrays import Structure, to_arrays
from train_anywhere.data.tf.pipeline import pipeline, row_spec
from train_anywhere.errors import DataError

ENDLESS = np.iinfo(np.int64).max
"""A batch number that is never reached."""


def training_batches(
    dataset: DataSet,
    order: BatchOrder,
    *,
    workers: int | str,
    start_epoch: int,
    start_batch: int,
    per_epoch: int,
) -> tf.data.Dataset:
    """Return endless batches of a rank, all of the same size; an incomplete batch at the end of an epoch is left out.

    `per_epoch` is the number of batches of an epoch.

    Raises:
        DataError: the batch size does not fit the ranks or the data, or the rows differ in structure.
    """
    check_batch(len(dataset), order.batch_size, order.world_size, train=True)

    def read(position: int) -> Structure:
        epoch, batch = divmod(position, per_epoch)
        return to_arrays(dataset.read(order.full_batch(len(dataset), epoch, batch), epoch, True), "data")

    spec = row_spec(dataset, order.batch_per_rank, train=True)
    return pipeline(read, spec, start_epoch * per_epoch + start_batch, ENDLESS, workers)


def evaluation_batches(
    dataset: DataSet, order: BatchOrder, *, workers: int | str, start: int, stop: int
) -> tf.data.Dataset:
    """Return a rank's part of the batches from `start` to `stop`, in the order of the data set; the last one may be smaller.

    Raises:
        DataError: as in `training_batches`, or the last batch has fewer rows than there are ranks.
    """
    check_batch(len(dataset), order.batch_size, order.world_size, train=False)
    refuse_few(len(dataset), order, stop)

    def read(batch: int) -> Structure:
        first = batch * order.batch_size
        rows = np.arange(first, min(first + order.batch_size, len(dataset)), dtype=np.int64)
        # the numbers of rows of two ranks differ by at most one
        return to_arrays(dataset.read(np.array_split(rows, order.world_size)[order.rank], 0, False), "data")

    even = stop * order.batch_size <= len(dataset)
    spec = row_spec(dataset, order.batch_per_rank if even else None, train=False)
    return pipeline(read, spec, start, stop, workers)


def refuse_few(length: int, order: BatchOrder, limit: int) -> None:
    """Raise DataError if a rank would have no row of the last batch: the mean over no rows is nan."""
    last = length - (batches_per_epoch(length, order.batch_size) - 1) * order.batch_size
    if limit * order.batch_size >= length and last < order.world_size:
        raise DataError(
            f"the last batch of {length} rows, with data.batch_size={order.batch_size}, has {last}, fewer than the {order.world_size} "
            "ranks: one of them would have nothing to measure. Use another data.batch_size, trainer.limit_val_batches="
            f"{length // order.batch_size} (or limit_test_batches), or fewer ranks."
        )
