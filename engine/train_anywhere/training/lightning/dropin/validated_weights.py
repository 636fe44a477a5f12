"""Keep the weights that validation measured, for checkpoint, test and export.

User hooks may swap weights around a validation (Lightning's WeightAveraging), or change them after the last checkpoint (its
StochasticWeightAveraging). Weights are copied only if the module or a callback has hooks that could do so.
"""

from copy import copy
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn

from train_anywhere.files.removal import print_once

TRAINING = "training_weights"
"""Checkpoint key of the entries of Lightning's `state_dict` that differ from the validated weights, for a resume."""

END_HOOKS = ("on_train_end", "on_fit_end")
"""Hooks that are called after the last checkpoint."""

Weights = dict[str, Tensor]


class ValidatedWeights(pl.Callback):
    """Callback that copies weights before user hooks change them, the first after the clock.

    Attributes:
        validated: the weights of this epoch's validation, before hooks restore others; on rank 0, empty if no hook could.
        before_end: the weights before the hooks in `END_HOOKS`; on rank 0, empty if there are none.
        swapped: whether hooks have swapped the weights until the end of the validation; the same on all ranks.
    """

    def __init__(self) -> None:
        self.validated, self.before_end, self._before = Weights(), Weights(), Weights()
        self.swapped = False

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Copy the weights before other hooks swap them. A test restores them."""
        fitting, kind = trainer.state.fn == TrainerFn.FITTING, str(trainer.state.stage.value)
        kind = kind.replace("validate", "validation")
        times = ("start", "epoch_start") if fitting else ("start", "epoch_start", "epoch_end", "end")
        hooks = [f"on_{kind}_{time}" for time in times]
        self._watched = not trainer.sanity_checking and user_hooks(trainer, *hooks)
        copies = self._watched and (trainer.is_global_zero or not fitting)
        self._before = copy_weights(pl_module) if copies else {}

    def on_validation_batch_start(self, trainer: Any, pl_module: pl.LightningModule, *args: Any) -> None:
        """See at the first batch whether start hooks have changed the weights."""
        if self._watched and args[1:] in ((0,), (0, 0)):
            if trainer.state.fn != TrainerFn.FITTING:
                self._restore_weights(pl_module)
            else:
                self.swapped = trainer.strategy.broadcast(bool(changed_weights(pl_module, self._before)))

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Copy the weights before other hooks restore the training weights."""
        late = ("on_validation_epoch_end", "on_validation_end", "on_train_epoch_end")
        if trainer.state.fn != TrainerFn.FITTING or not (self.swapped or user_hooks(trainer, *late)):
            return
        if any(hasattr(p, "to_local") for p in pl_module.parameters()):
            if self.swapped:
                print_once(
                    "fsdp: checkpoints hold the training weights, not the ones that hooks swapped in for validation."
                )
        elif trainer.is_global_zero:
            self.validated = copy_weights(pl_module)

    def forget(self, *_: Any) -> None:
        """Forget the weights of the last validation."""
        self.validated = {}

    on_train_epoch_start = forget

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Copy the weights before other hooks change them."""
        copies = trainer.is_global_zero and user_hooks(trainer, *END_HOOKS)
        self.before_end = copy_weights(pl_module) if copies else {}

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Restore the weights after a test or a prediction."""
        if stage != "fit":
            self._restore_weights(pl_module)

    on_test_start = on_predict_start = on_validation_start
    on_test_batch_start = on_predict_batch_start = on_validation_batch_start

    def _restore_weights(self, module: nn.Module) -> None:
        own = dict(_tensors(module))
        for name in changed_weights(module, self._before):
            own[name].copy_(self._before[name])
            print_once(
                "hooks change the weights for a test; the weights of the checkpoint are measured instead."
            )


def user_hooks(trainer: pl.Trainer, *names: str) -> bool:
    """Return whether the user's module or callbacks have one of these hooks."""
    known = (*trainer.callbacks, trainer.lightning_module)
    owners = [owner for owner in known if not type(owner).__module__.startswith("train_anywhere.")]
    return any(overrides(owner, name) for owner in owners for name in names)


def overrides(owner: Any, name: str) -> bool:
    """Return whether an owner of hooks overrides one, in its class or on the object."""
    bases = (pl.LightningModule, pl.Callback, pl.LightningDataModule)
    base = next(b for b in bases if isinstance(owner, b))
    return getattr(getattr(owner, name), "__func__", None) is not getattr(base, name)


def copy_weights(module: nn.Module) -> Weights:
    """Return copies of this rank's weights on the CPU."""
    return {name: tensor.to("cpu", copy=True) for name, tensor in _tensors(module)}


def changed_weights(module: nn.Module, before: Weights) -> list[str]:
    """Return the names of the weights that differ from `before`."""
    present = _tensors(module) if before else ()
    return [n for n, tensor in present if n in before and not torch.equal(tensor.cpu(), before[n])]


def with_validated_weights(checkpoint: dict[str, Any], validated: Weights) -> dict[str, Any]:
    """Return the checkpoint with validated weights, and the training weights for a resume."""
    own = checkpoint["state_dict"]
    replaced = {n: own[n] for n, t in validated.items() if n in own and not torch.equal(own[n].cpu(), t)}
    weights = copy(own)  # keeps the layer versions that torch attaches to it
    weights.update({name: validated[name] for name in replaced})
    return {**checkpoint, "state_dict": weights, TRAINING: replaced} if replaced else checkpoint


def with_training_weights(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Restore in place the training weights that `with_validated_weights` has replaced."""
    if TRAINING in checkpoint:
        checkpoint["state_dict"].update(checkpoint.pop(TRAINING))
    return checkpoint


def _tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    found = [(name, t) for name, t in module.state_dict().items() if isinstance(t, Tensor)]
    return [(name, getattr(t, "to_local", lambda t=t: t)().detach()) for name, t in found]
