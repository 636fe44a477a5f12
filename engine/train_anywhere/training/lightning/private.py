"""The private names of Lightning and torch that the engine uses, and the methods that it replaces.

Without one of them a feature is off, and a line says so.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import lightning
import lightning.pytorch as pl

from train_anywhere.files.removal import print_once


@contextmanager
def _feature(off: str) -> Iterator[None]:
    """Print what is off if the block uses a name that this version of Lightning does not have."""
    try:
        yield
    except AttributeError as error:
        print_once(f"lightning {lightning.__version__}: {off} ({error}).")


def logged_values(trainer: pl.Trainer) -> dict[str, Any]:
    """Return what `self.log` has collected in this epoch of training."""
    with _feature("metrics of an interrupted epoch start anew"):
        return trainer.fit_loop.epoch_loop._results
    return {}


def continue_logging(trainer: pl.Trainer, batches: int) -> None:
    """Let Lightning add to the values of the `batches` before in this epoch, instead of starting with those of the next one."""
    with _feature("metrics of an interrupted epoch start anew"):
        trainer._logger_connector.reset_results()
        for _ in range(min(batches, 2)):  # it tells the first batch of an epoch from later ones
            trainer._logger_connector.on_batch_start(None)


def reopen_loaders(trainer: pl.Trainer) -> None:
    """Open the training loaders again, at the position that they have now."""
    with _feature("a resumed epoch reads its rows from the first one"):
        iter(trainer.fit_loop._data_fetcher)  # type: ignore[arg-type]


def open_in_validation(trainer: pl.Trainer, is_time: Callable[[], bool]) -> None:
    """Leave out calls that open the validation loaders until `is_time`: Lightning also opens them at the start of an epoch."""
    with _feature("a resumed run opens its validation loaders before its first step"):
        loop = trainer.fit_loop.epoch_loop.val_loop
        opens = loop.setup_data
        loop.setup_data = lambda: opens() if is_time() else None  # type: ignore[method-assign]


def validated_batches(trainer: pl.Trainer) -> dict[int, int]:
    """Return the number of batches validated by each loader: the steps at which loggers get the values of a validation's batches."""
    with _feature("the values of each validated batch start at step 0 again after a resume"):
        return trainer.fit_loop.epoch_loop.val_loop._seen_batches_per_dataloader
    return {}


def skip_signal_exchange(trainer: pl.Trainer) -> None:
    """Leave out the exchange of signals in each step: the ranks agree to stop when they reduce their metrics."""
    with _feature("each step exchanges signals between the ranks"):
        assert trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor
        trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]


def forget_groups(mesh: Any) -> None:
    """Let a mesh forget its process groups: torch caches the mesh, and they must end before Python does."""
    with _feature("a process group of fsdp ends with Python"):
        mesh._pg_registry.clear()
