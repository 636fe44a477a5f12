"""Load the weights that `init=RUN` names, on rank 0, which then broadcasts them."""

from collections.abc import Callable

from train_anywhere.checkpoints.choice import read_chosen
from train_anywhere.checkpoints.info import SavedCheckpoint
from train_anywhere.checkpoints.init_run import select_weights
from train_anywhere.config.schema import Init
from train_anywhere.runs.folder import open_run
from train_anywhere.training.keras.checkpoint.state import read_weights
from train_anywhere.training.keras.module import Module
from train_anywhere.training.resume_messages import refuse_other_framework

SEED_STATE = "seed_generator_state"
"""Suffix of the names of random states, which are not loaded: a new run uses its own seed."""


def load_initial_weights(init: Init, module: Module, report: Callable[[str], None]) -> None:
    """Load the weights that `init` names into the model, if it names any; `report` prints a line.

    Raises:
        CheckpointError: the weights can't be read, or do not fit.
    """
    if init.run is None:
        return

    def read(saved: SavedCheckpoint) -> dict[str, object]:
        refuse_other_framework(saved, "keras")
        return dict(read_weights(saved.path))

    stored = read_chosen(open_run(init.run), init.checkpoint, read)
    own = {name: variable for name, variable in module.weights().items() if not name.endswith(SEED_STATE)}
    stored = {name: array for name, array in stored.items() if not name.endswith(SEED_STATE)}
    for name in select_weights(_shapes(own), _shapes(stored), init, report):
        own[name].assign(stored[name])


def _shapes(arrays: dict) -> dict[str, tuple[int, ...]]:
    return {name: tuple(array.shape) for name, array in arrays.items()}
