"""Reading a checkpoint: numbers only, and one sentence for anything that is wrong with it."""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lightning.pytorch.trainer.connectors.checkpoint_connector import _CheckpointConnector
from torch.distributed.checkpoint.api import CheckpointException

from src.checkpoints.plain_zip import refuse_compressed
from src.errors import CheckpointError, ProjectError


class Restorer(_CheckpointConnector):
    """Restores always with `weights_only=True`, which Lightning forgets for some strategies."""

    def _restore_modules_and_callbacks(self, checkpoint_path: Any = None, weights_only: Any = None) -> None:
        with one_sentence(checkpoint_path):
            if checkpoint_path:
                refuse_compressed(checkpoint_path)
            super()._restore_modules_and_callbacks(checkpoint_path, weights_only=True)

    def restore_training_state(self) -> None:
        """Optimizer and loops."""
        with one_sentence(self._ckpt_path):
            super().restore_training_state()


@contextmanager
def one_sentence(path: object) -> Iterator[None]:
    """Turn what torch and Lightning raise at an unexpected file into a CheckpointError."""
    try:
        yield
    except ProjectError:
        raise
    except CheckpointException as error:
        raise _sentence(path, next(cause for cause, _ in error.failures.values())) from error
    except Exception as error:
        raise _sentence(path, error) from error


def _sentence(path: object, error: BaseException) -> ProjectError:
    if isinstance(error, ProjectError):
        return error
    if isinstance(error, pickle.UnpicklingError):
        return CheckpointError(
            f"{path} is damaged, or holds more than tensors and numbers; it is not read, because that could run code. "
            "Move its folder away to resume from the checkpoint before it."
        )
    said = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return CheckpointError(
        f"{path} can't be resumed: {said} It is damaged, or was written with another model or version. "
        "Move its folder away to resume from the checkpoint before it."
    )
