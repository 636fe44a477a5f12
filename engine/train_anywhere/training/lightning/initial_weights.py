"""Start from the weights of another run (`init=RUN`) with Lightning, before the strategy sets up the model."""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from train_anywhere.checkpoints.choice import read_chosen
from train_anywhere.checkpoints.info import SavedCheckpoint
from train_anywhere.checkpoints.init_run import select_weights
from train_anywhere.config.schema import Init
from train_anywhere.runs.folder import open_run
from train_anywhere.training.lightning.checkpoint.stored_weights import StoredWeights
from train_anywhere.training.lightning.strategies.deferred_weights import DeferredWeights
from train_anywhere.training.resume_messages import refuse_other_framework


def load_initial_weights(
    init: Init, module: nn.Module, report: Callable[[str], None], deferred: DeferredWeights | None = None
) -> None:
    """Load the weights of the run that `init` names, if any; `deferred` holds weights without memory. Every rank calls it.

    Raises:
        CheckpointError: the weights can't be read, or do not fit.
    """
    if init.run is None:
        return

    def read(saved: SavedCheckpoint) -> StoredWeights:
        refuse_other_framework(saved, "lightning")
        return StoredWeights(saved.path)

    stored = read_chosen(open_run(init.run), init.checkpoint, read)
    own = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
    taken = select_weights({name: tuple(t.shape) for name, t in own.items()}, stored.shapes, init, report)
    for name in taken:
        if own[name].is_meta and deferred:
            deferred.set_value(own[name], partial(stored.read, name))
    module.load_state_dict({n: stored.read(n) for n in taken if not own[n].is_meta}, strict=False)
