"""One model: the weights that a validation measures are in its checkpoint, and are tested, evaluated and exported.

User hooks exchange weights around a validation (Lightning's WeightAveraging), or change them after the last checkpoint (its
StochasticWeightAveraging). Copies are made only for modules and callbacks with hooks that could do so.
"""

from collections.abc import Callable, Iterable
from copy import copy
from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import StochasticWeightAveraging
from lightning.pytorch.loops.evaluation_loop import _EvaluationLoop
from lightning.pytorch.loops.fit_loop import _FitLoop
from torch import Tensor, nn

from src.files.removal import say_once
from src.training.lightning.fast_loop import overrides
from src.training.lightning.trained import check_trained, restore_flags

TRAINING = "training_weights"
"""Key in a checkpoint: the entries of Lightning's `state_dict` that differ from the measured weights, for a resume."""

FIRST, LAST = ("model_eval", "start", "epoch_start"), ("epoch_end", "end", "model_train")
"""Hooks at both ends of a validation, a test or a prediction, without the beginning of their names."""

ENDS = ("on_train_end", "on_fit_end")
"""Hooks after the last checkpoint."""

Weights = dict[str, Tensor]


class FitLoop(_FitLoop):
    """Lightning's loop over the epochs, which restores the trained state after the hooks of the start and checks it at each epoch.

    Attributes:
        before_end: copies of the weights before the hooks in `ENDS`, on rank 0; empty if the user has no such hook.
    """

    before_end: Weights = {}  # noqa: RUF012

    @property
    def skip(self) -> bool:
        """Whether nothing is left to do; the hooks of the end are called again for a run that resumes there."""
        return super().skip and not (self.trainer.ckpt_path and user_hooks(self.trainer, ENDS))

    def on_run_start(self) -> None:
        """Restore again what `setup`, `on_fit_start` and `on_train_start` have set as in a new run."""
        super().on_run_start()
        restorer: Any = self.trainer._checkpoint_connector
        restore_flags(self.trainer.lightning_module, restorer.trained)
        restorer.trained = {}

    def on_advance_start(self) -> None:
        """Check the trained state after the hooks of the epoch's start, which a resume within an epoch does not call."""
        if self.restarted_mid_epoch or self.restarted_on_epoch_end:
            self._resume_averaging()
        super().on_advance_start()
        check_trained(self.trainer)

    def _resume_averaging(self) -> None:
        """Let StochasticWeightAveraging put its schedule in place: without it, it would wait for the next epoch's start."""
        trainer: Any = self.trainer
        for callback in trainer.callbacks:
            if isinstance(callback, StochasticWeightAveraging) and callback._scheduler_state is not None:
                rates = [group["lr"] for group in trainer.optimizers[0].param_groups]
                callback.on_train_epoch_start(trainer, trainer.lightning_module)
                for group, rate in zip(trainer.optimizers[0].param_groups, rates, strict=True):
                    group["lr"] = rate  # making the schedule has set it

    def on_advance_end(self) -> None:
        """End the epoch, with its checkpoint."""
        super().on_advance_end()
        self.epoch_loop.val_loop.measured = {}

    def on_run_end(self) -> None:
        """Copy the weights if hooks may change them now, after the last checkpoint."""
        watched = self.trainer.is_global_zero and user_hooks(self.trainer, ENDS)
        self.before_end = weights_of(self.trainer.lightning_module) if watched else {}
        super().on_run_end()


class ValidationLoop(_EvaluationLoop):
    """Lightning's validation in a training, which copies the weights that it has measured.

    Attributes:
        exchanged: hooks have put other weights in place until the end of this validation; the same on all ranks.
        measured: the weights at its end, before hooks put others back; empty if no hook could, and on ranks that write no weights.
    """

    exchanged = False
    measured: Weights = {}  # noqa: RUF012

    def on_run_start(self) -> None:
        """Call the hooks of the start, and notice if they exchange weights."""
        trainer, module = self.trainer, self.trainer.lightning_module
        self._module_mode.capture(module)
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if hasattr(callback, "before_validation"):
                callback.before_validation(trainer)
        watched = user_hooks(trainer, [f"on_validation_{name}" for name in FIRST])
        before = weights_of(module) if watched and _keeps(trainer) else {}
        super().on_run_start()
        self.exchanged = watched and trainer.strategy.broadcast(bool(changed(module, before)))

    def on_run_end(self) -> Any:
        """Copy the weights, then call the hooks of the end."""
        trainer = self.trainer
        last = [*(f"on_validation_{name}" for name in LAST), "on_train_epoch_end"]
        if _keeps(trainer) and (self.exchanged or user_hooks(trainer, last)):
            self.measured = weights_of(trainer.lightning_module)
        return super().on_run_end()


def user_hooks(trainer: pl.Trainer, names: Iterable[str]) -> bool:
    """Return whether the module or a callback of the user has one of these hooks."""
    known = (*trainer.callbacks, trainer.lightning_module)  # type: ignore[attr-defined]
    owners = [owner for owner in known if not type(owner).__module__.startswith(str(__package__))]
    return any(hasattr(owner, name) and overrides(owner, name) for owner in owners for name in names)


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
    if not replaced:
        return checkpoint
    weights = copy(own)  # keeps the versions of layers that torch hangs on it
    weights.update({name: measured[name] for name in replaced})
    return {**checkpoint, "state_dict": weights, TRAINING: replaced}


def without_measured(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Put back in place what `with_measured` has replaced: a training continues with it."""
    if TRAINING in checkpoint:
        checkpoint["state_dict"].update(checkpoint.pop(TRAINING))
    return checkpoint


def keep_weights(trainer: pl.Trainer, loop: Any, kind: str) -> None:
    """Let a test, validation or prediction outside of a training measure the weights that were loaded, whatever hooks exchange."""
    for method, names in (("on_run_start", FIRST), ("on_run_end", LAST)):
        hooks = [f"on_{kind}_{name}" for name in names]
        setattr(loop, method, partial(_keeping, trainer, getattr(loop, method), hooks))


def _keeping(trainer: pl.Trainer, method: Callable[[], Any], hooks: list[str]) -> Any:
    module = trainer.lightning_module
    before = weights_of(module) if user_hooks(trainer, hooks) else {}
    answer = method()
    if names := changed(module, before):
        own = dict(_tensors(module))
        for name in names:
            own[name].copy_(before[name])
        say_once(f"{hooks[1]} or a hook like it changes weights: those of the checkpoint are measured.")
    return answer


def _keeps(trainer: pl.Trainer) -> bool:
    return trainer.is_global_zero and not any(
        hasattr(p, "to_local") for p in trainer.lightning_module.parameters()
    )


def _tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    found = [(name, t) for name, t in module.state_dict().items() if isinstance(t, Tensor)]
    return [(name, getattr(t, "to_local", lambda t=t: t)().detach()) for name, t in found]
