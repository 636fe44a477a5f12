"""One model: the weights that a validation measures are in its checkpoint, and are tested, evaluated and exported.

User hooks exchange weights around a validation (Lightning's WeightAveraging), or change them after the last checkpoint (its
StochasticWeightAveraging). Copies are made only for modules and callbacks with hooks that could do so.
"""

from copy import copy
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn

from train_anywhere.files.removal import say_once
from train_anywhere.training.lightning.loop.fast_loop import overrides

TRAINING = "training_weights"
"""Key in a checkpoint: the entries of Lightning's `state_dict` that differ from the measured weights, for a resume."""

ENDS = ("on_train_end", "on_fit_end")
"""Hooks after the last checkpoint."""

Weights = dict[str, Tensor]


class OneModel(pl.Callback):
    """Copies weights before hooks of the user can change them; the first callback, but for the clock.

    Attributes:
        measured: what this epoch's validation has measured, before hooks put other weights back; on rank 0, empty if none could.
        before_end: the weights before the hooks in `ENDS`; on rank 0, empty if there are none.
        exchanged: hooks have put other weights in place until the validation's end; the same on all ranks.
    """

    def __init__(self) -> None:
        self.measured, self.before_end, self._before = Weights(), Weights(), Weights()
        self.exchanged = False

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Copy the weights before other hooks exchange them; a test or prediction puts them back."""
        fitting, kind = trainer.state.fn == TrainerFn.FITTING, str(trainer.state.stage.value)  # type: ignore[union-attr]
        kind = kind.replace("validate", "validation")
        times = ("start", "epoch_start") if fitting else ("start", "epoch_start", "epoch_end", "end")
        self._watched = user_hooks(trainer, *(f"on_{kind}_{time}" for time in times))
        self._before = (
            weights_of(pl_module) if self._watched and (trainer.is_global_zero or not fitting) else {}
        )

    def on_validation_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any
    ) -> None:
        """All hooks of the start have been called."""
        if self._watched and args[1:] in ((0,), (0, 0)):
            if trainer.state.fn != TrainerFn.FITTING:
                self._put_back(pl_module)
            else:
                self.exchanged = trainer.strategy.broadcast(bool(changed(pl_module, self._before)))

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Copy the weights before other hooks put back those of training, or change them at the end of the epoch."""
        late = ("on_validation_epoch_end", "on_validation_end", "on_train_epoch_end")
        if trainer.state.fn != TrainerFn.FITTING or not (self.exchanged or user_hooks(trainer, *late)):
            return
        if any(hasattr(p, "to_local") for p in pl_module.parameters()):
            if self.exchanged:
                say_once(
                    "fsdp: checkpoints hold the weights of training, not those that hooks validate instead."
                )
        elif trainer.is_global_zero:
            self.measured = weights_of(pl_module)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Nothing is measured yet."""
        self.measured = {}

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Copy the weights before other hooks change them."""
        self.before_end = (
            weights_of(pl_module) if trainer.is_global_zero and user_hooks(trainer, *ENDS) else {}
        )

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """After a test or a prediction the weights are those of before."""
        if stage != "fit":
            self._put_back(pl_module)

    on_test_start = on_predict_start = on_validation_start
    on_test_batch_start = on_predict_batch_start = on_validation_batch_start

    def _put_back(self, module: nn.Module) -> None:
        own = dict(_tensors(module))
        for name in changed(module, self._before):
            own[name].copy_(self._before[name])
            say_once("hooks change the weights for a test: those of the checkpoint are measured.")


def user_hooks(trainer: pl.Trainer, *names: str) -> bool:
    """Return whether the module or a callback of the user has one of these hooks."""
    known = (*trainer.callbacks, trainer.lightning_module)  # type: ignore[attr-defined]
    owners = [owner for owner in known if not type(owner).__module__.startswith(str(__package__))]
    return any(overrides(owner, name) for owner in owners for name in names)


def weights_of(module: nn.Module) -> Weights:
    """Return copies on the CPU of the weights, with a sharded strategy of this rank's part."""
    return {name: tensor.to("cpu", copy=True) for name, tensor in _tensors(module)}


def changed(module: nn.Module, before: Weights) -> list[str]:
    """Return the names of the weights that are not those of before."""
    present = _tensors(module) if before else ()
    return [n for n, tensor in present if n in before and not torch.equal(tensor.cpu(), before[n])]


def with_measured(checkpoint: dict[str, Any], measured: Weights) -> dict[str, Any]:
    """Return the checkpoint with the measured weights, and with what they replace for a resume."""
    own = checkpoint["state_dict"]
    replaced = {n: own[n] for n, t in measured.items() if n in own and not torch.equal(own[n].cpu(), t)}
    weights = copy(own)  # keeps the versions of layers that torch hangs on it
    weights.update({name: measured[name] for name in replaced})
    return {**checkpoint, "state_dict": weights, TRAINING: replaced} if replaced else checkpoint


def without_measured(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Put back in place what `with_measured` has replaced: a training continues with it."""
    if TRAINING in checkpoint:
        checkpoint["state_dict"].update(checkpoint.pop(TRAINING))
    return checkpoint


def _tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    found = [(name, t) for name, t in module.state_dict().items() if isinstance(t, Tensor)]
    return [(name, getattr(t, "to_local", lambda t=t: t)().detach()) for name, t in found]
