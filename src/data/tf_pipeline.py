"""A data set as a `tf.data` pipeline of whole batches, in the order of `src.data.order`."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import tensorflow as tf

from src.data.base import ImageSet
from src.data.batch import check_batch
from src.data.order import BatchOrder, batches_per_epoch
from src.errors import DataError

ENDLESS = np.iinfo(np.int64).max


def tf_dataset(
    dataset: ImageSet,
    order: BatchOrder,
    *,
    workers: int = 0,
    start_epoch: int = 0,
    start_batch: int = 0,
    epochs: int | None = None,
    limit_batches: int | None = None,
) -> tf.data.Dataset:
    """Batches of a rank: image float32 [b, H, W, C], label int64 [b], weight float32 [b], b = `order.batch_per_rank`.

    For tf.distribute, build it inside `distribute_datasets_from_function`: it is already this rank's part.

    Args:
        workers: batches that are read at once, by threads.
        start_epoch, start_batch: the first batch, both from 0.
        epochs: the end, before this epoch; None: without end.
        limit_batches: batches of each epoch; None: all.

    Raises:
        DataError: the batch does not suit the ranks or the data.
    """
    check_batch(len(dataset), order.batch_size, order.world_size, order.train)
    whole = batches_per_epoch(len(dataset), order.batch_size)
    per_epoch = min(whole, whole if limit_batches is None else limit_batches)

    def read(position: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        epoch, batch = divmod(int(position), per_epoch)
        indices, weights = order.rows(len(dataset), epoch, batch)
        images, labels = dataset.read(indices, epoch, order.train)
        return images, labels, weights

    def tensors(position: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        image, label, weight = tf.numpy_function(read, [position], (tf.float32, tf.int64, tf.float32))
        rows = order.batch_per_rank
        return (
            tf.ensure_shape(image, (rows, *dataset.shape)),
            tf.ensure_shape(label, (rows,)),
            tf.ensure_shape(weight, (rows,)),
        )

    positions = tf.data.Dataset.range(
        start_epoch * per_epoch + start_batch, ENDLESS if epochs is None else epochs * per_epoch
    )
    batches = positions.map(tensors, num_parallel_calls=max(1, workers), deterministic=True)
    return batches.prefetch(2).with_options(_options())


def _options() -> tf.data.Options:
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
