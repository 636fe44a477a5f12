"""`init=RUN` with Lightning: the weights of another run, before the strategy has seen the model."""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from train_anywhere.checkpoints.choice import read_chosen
from train_anywhere.checkpoints.info import SavedCheckpoint
from train_anywhere.checkpoints.init_run import fitting
from train_anywhere.config.schema import Config
from train_anywhere.runs.folder import open_run
from train_anywhere.training.lightning.checkpoint.read_weights import Stored
from train_anywhere.training.lightning.strategies.later_weights import Later
from train_anywhere.training.resuming import refuse_other_framework


def begin_with(
    config: Config, module: nn.Module, tell: Callable[[str], None], later: Later | None = None
) -> None:
    """Give the module the weights that `init` names, if it names any; every rank calls it.

    Args:
        later: the values of weights that have no memory yet.

    Raises:
        CheckpointError: they can't be read, or do not fit.
    """
    if config.init.run is None:
        return

    def read(saved: SavedCheckpoint) -> Stored:
        refuse_other_framework(saved, "lightning")
        return Stored(saved.path)

    stored = read_chosen(open_run(config.init.run), config.init.checkpoint, read)
    own = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
    taken = fitting({name: tuple(t.shape) for name, t in own.items()}, stored.shapes, config, tell)
    for name in taken:
        if own[name].is_meta and later:
            later.give(own[name], partial(stored.read, name))
    module.load_state_dict({n: stored.read(n) for n in taken if not own[n].is_meta}, strict=False)
