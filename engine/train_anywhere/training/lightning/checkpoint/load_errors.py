"""Errors of torch and Lightning at a damaged checkpoint, or one of another model."""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager

from torch.distributed.checkpoint.api import CheckpointException

from train_anywhere.errors import CheckpointError, ProjectError


@contextmanager
def as_checkpoint_error(path: object) -> Iterator[None]:
    """Turn any error of torch or Lightning at an unexpected file into a CheckpointError."""
    try:
        yield
    except ProjectError:
        raise
    except CheckpointException as error:
        raise _to_checkpoint_error(path, next(cause for cause, _ in error.failures.values())) from error
    except Exception as error:
        raise _to_checkpoint_error(path, error) from error


def _to_checkpoint_error(path: object, error: BaseException) -> ProjectError:
    if isinstance(error, ProjectError):
        return error
    if isinstance(error, pickle.UnpicklingError):
        return CheckpointError(
            f"{path} is damaged, or holds more than tensors and numbers; it is not read, because that could run code. "
            "Move its folder away to resume from the checkpoint before it."
        )
    if "loading state_dict" in str(error):
        lines = " ".join(line.strip() for line in str(error).splitlines()[1:])
        return CheckpointError(
            f"{path} holds the weights of another model: {lines} Use the code and the configuration that wrote it."
        )
    message = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return CheckpointError(
        f"{path} can't be resumed: {message} It is damaged, or was written with another model or version. "
        "Move its folder away to resume from the checkpoint before it."
    )
