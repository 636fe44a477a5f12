"""Check that the global batch size fits the ranks and the data, without reading any data."""

from train_anywhere.config.checks.contradictions import batch_size_problem
from train_anywhere.errors import DataError


def check_batch(length: int, batch_size: int, world_size: int, train: bool) -> None:
    """Raise DataError if the global `batch_size` can't be shared evenly by the ranks, or exceeds the training split."""
    if batch_size < 1:
        raise DataError(
            f"data.batch_size={batch_size} is not a positive number; use data.batch_size=32, for example."
        )
    if problem := batch_size_problem(batch_size, world_size, "ranks"):
        raise DataError(problem)
    if train and (problem := too_large(length, batch_size, world_size)):
        raise DataError(problem)


def too_large(length: int, batch_size: int, world_size: int) -> str:
    """Return the message for a global batch that is larger than the training split; "" if it is not."""
    if batch_size <= length:
        return ""
    largest = length // world_size * world_size
    use = f"use data.batch_size={largest} or less" if largest else f"use {length} ranks or fewer"
    return (
        f"data.batch_size={batch_size} is larger than the training split, which has {length} samples; {use}."
    )
