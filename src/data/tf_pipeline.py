"""A data set as a `tf.data` pipeline of whole batches, in the order of `src.data.order`."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import tensorflow as tf

from src.data.base import ImageSet
from src.data.batch import check_batch
from src.data.order import batch_rows, steps_per_epoch
from src.errors import DataError

ENDLESS = np.iinfo(np.int64).max


def tf_dataset(
    dataset: ImageSet,
    *,
    batch_size: int,
    seed: int,
    train: bool,
    rank: int = 0,
    world_size: int = 1,
    workers: int = 0,
    start_epoch: int = 0,
    start_step: int = 0,
    epochs: int | None = None,
    limit_batches: int | None = None,
) -> tf.data.Dataset:
    """Batches of a rank: image float32 [b, H, W, C], label int64 [b], weight float32 [b], b = batch_size / W.

    `batch_size` is that of all ranks together. With `train`, samples are shuffled and augmented. Runs from
    (`start_epoch`, `start_step`) to the end of epoch `epochs` - 1, or without end; each epoch is cut to
    `limit_batches` steps. `workers` batches are read at once, by threads. Raises DataError.

    For tf.distribute, build it inside `distribute_datasets_from_function`: it is already this rank's part.
    """
    check_batch(len(dataset), batch_size, world_size, train)
    whole = steps_per_epoch(len(dataset), batch_size)
    steps = min(whole, whole if limit_batches is None else limit_batches)

    def read(position: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        epoch, step = divmod(int(position), steps)
        indices, weights = batch_rows(len(dataset), batch_size, seed, epoch, step, rank, world_size, train)
        images, labels = dataset.read(indices, epoch, train)
        return images, labels, weights

    def batch(position: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        image, label, weight = tf.numpy_function(read, [position], (tf.float32, tf.int64, tf.float32))
        rows = batch_size // world_size
        return (
            tf.ensure_shape(image, (rows, *dataset.shape)),
            tf.ensure_shape(label, (rows,)),
            tf.ensure_shape(weight, (rows,)),
        )

    positions = tf.data.Dataset.range(
        start_epoch * steps + start_step, ENDLESS if epochs is None else epochs * steps
    )
    batches = positions.map(batch, num_parallel_calls=max(1, workers), deterministic=True)
    return batches.prefetch(2).with_options(_options())


def _options() -> tf.data.Options:
    """Order is part of the contract, and rows are this rank's already: TensorFlow must not shard again."""
    options = tf.data.Options()
    options.deterministic = True
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options


@contextmanager
def plain_data_errors() -> Iterator[None]:
    """Raise the DataError of a reader, which TensorFlow passes on as text inside an error of its own."""
    try:
        yield
    except tf.errors.OpError as error:
        found = re.search(r"DataError: (.+)", error.message or "")
        if found is None:
            raise
        raise DataError(found.group(1)) from None
