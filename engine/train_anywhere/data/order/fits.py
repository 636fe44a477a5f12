"""Whether a global batch suits the ranks and the data, without reading any."""

from train_anywhere.config.checks.batch_size import uneven_batch
from train_anywhere.errors import DataError


def check_batch(length: int, batch_size: int, world_size: int, train: bool) -> None:
    """Raise DataError if the ranks can't share the global `batch_size` evenly, or there are too few samples to train with it."""
    if batch_size < 1:
        raise DataError(
            f"data.batch_size={batch_size} is not a positive number; use data.batch_size=32, for example."
        )
    if problem := uneven_batch(batch_size, world_size, "ranks"):
        raise DataError(problem)
    if train and (sentence := too_large(length, batch_size, world_size)):
        raise DataError(sentence)


def too_large(length: int, batch_size: int, world_size: int) -> str:
    """The sentence for a global batch larger than the training split; "" if it is not."""
    if batch_size <= length:
        return ""
    largest = length // world_size * world_size
    use = f"use data.batch_size={largest} or less" if largest else f"use {length} ranks or fewer"
    return (
        f"data.batch_size={batch_size} is larger than the training split, which has {length} samples; {use}."
    )
