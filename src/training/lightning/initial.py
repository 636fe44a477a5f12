"""`init=RUN` with Lightning: the weights of another run, before the strategy has seen the model."""

from collections.abc import Callable

from torch import Tensor, nn

from src.checkpoints.choose import read_chosen
from src.checkpoints.info import SavedCheckpoint
from src.checkpoints.initial import fitting
from src.config.schema import Config
from src.runs.folder import open_run
from src.training.lightning.weights import WEIGHTS, read_checkpoint
from src.training.resuming import refuse_other_framework


def begin_with(config: Config, module: nn.Module, tell: Callable[[str], None]) -> None:
    """Give the module the weights that `init` names, if it names any; every rank calls it.

    Raises:
        CheckpointError: they can't be read, or do not fit.
    """
    if config.init.run is None:
        return

    def read(saved: SavedCheckpoint) -> dict[str, Tensor]:
        refuse_other_framework(saved, "lightning")
        weights: dict[str, Tensor] = read_checkpoint(saved.path)[WEIGHTS]
        return weights

    stored = read_chosen(open_run(config.init.run), config.init.checkpoint, read)
    own = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
    taken = fitting(_shapes(own), _shapes(stored), config, tell)
    module.load_state_dict({name: stored[name] for name in taken}, strict=False)


def _shapes(tensors: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(t.shape) for name, t in tensors.items() if isinstance(t, Tensor)}
