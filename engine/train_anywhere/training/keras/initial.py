"""`init=RUN` with Keras: the weights of another run, on the rank that then gives its state to all others."""

from collections.abc import Callable

from train_anywhere.checkpoints.choice import read_chosen
from train_anywhere.checkpoints.info import SavedCheckpoint
from train_anywhere.checkpoints.init_run import fitting
from train_anywhere.config.schema import Config
from train_anywhere.runs.folder import open_run
from train_anywhere.training.keras.checkpoint.state import read_weights
from train_anywhere.training.keras.module import Module
from train_anywhere.training.resuming import refuse_other_framework

DRAWS = "seed_generator_state"
"""End of the names of random states, which are no weights: a new run draws by its own seed."""


def begin_with(config: Config, module: Module, tell: Callable[[str], None]) -> None:
    """Give the model the weights that `init` names, if it names any.

    Raises:
        CheckpointError: they can't be read, or do not fit.
    """
    if config.init.run is None:
        return

    def read(saved: SavedCheckpoint) -> dict[str, object]:
        refuse_other_framework(saved, "keras")
        return dict(read_weights(saved.path))

    stored = read_chosen(open_run(config.init.run), config.init.checkpoint, read)
    own = {name: variable for name, variable in module.weights().items() if not name.endswith(DRAWS)}
    stored = {name: array for name, array in stored.items() if not name.endswith(DRAWS)}
    for name in fitting(_shapes(own), _shapes(stored), config, tell):
        own[name].assign(stored[name])


def _shapes(arrays: dict) -> dict[str, tuple[int, ...]]:
    return {name: tuple(array.shape) for name, array in arrays.items()}
