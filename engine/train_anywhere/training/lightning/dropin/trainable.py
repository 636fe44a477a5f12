"""Which parameters are trainable, and which mode each layer is in."""

import json
from typing import Any, cast

import lightning.pytorch as pl
from lightning.pytorch.callbacks import GradientAccumulationScheduler, StochasticWeightAveraging
from torch import nn
from torch.optim import Optimizer

from train_anywhere.errors import RanksDifferError, listed
from train_anywhere.training.lightning.checkpoint.rank_state import gather, gather_checksums, unpack

KEY = "trained"
"""Checkpoint key of this state."""


def repeat_start_hooks(trainer: pl.Trainer, states: dict[str, Any]) -> None:
    """Call hooks of Lightning's callbacks that set up an epoch, which Lightning leaves out in the middle of it.

    `states` are those of the callbacks in the checkpoint.
    """
    loop = trainer.fit_loop
    if not (loop.restarted_mid_epoch or loop.restarted_on_epoch_end):
        return
    for callback in trainer.callbacks:
        averaged = states.get(callback.state_key, {}).get("scheduler_state") is not None
        if isinstance(callback, StochasticWeightAveraging) and averaged:
            groups = trainer.optimizers[0].param_groups
            rates = [group["lr"] for group in groups]
            callback.on_train_epoch_start(trainer, trainer.lightning_module)
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate  # its new schedule has changed it
        elif isinstance(callback, GradientAccumulationScheduler):
            callback.on_train_epoch_start(trainer)


def read_flags(trainer: pl.Trainer) -> dict[str, Any]:
    """Return `requires_grad` of each parameter and `training` of each layer, by name."""
    module, strategy = trainer.lightning_module, cast(Any, trainer.strategy)
    training = {name: layer.training for name, layer in module.named_modules()}
    if trainer.validating:  # all layers are in eval mode until validation ends
        training |= strategy.modes
    return {"requires_grad": {n: p.requires_grad for n, p in module.named_parameters()}, "training": training}


def trainable_state(trainer: pl.Trainer) -> dict[str, Any]:
    """Return the flags, and the names of the parameters in each optimizer's groups."""
    names = {p: name for name, p in trainer.lightning_module.named_parameters()}
    groups = [[[names.get(p) for p in g["params"]] for g in o.param_groups] for o in trainer.optimizers]
    return {**read_flags(trainer), "groups": groups}


def set_flags(module: nn.Module, saved: dict[str, Any]) -> None:
    """Set `requires_grad` and `training` as saved."""
    parameters, layers = dict(module.named_parameters()), dict(module.named_modules())
    for name, trainable in saved.get("requires_grad", {}).items():
        if name in parameters and parameters[name].requires_grad != trainable:
            parameters[name].requires_grad_(trainable)
    for name, training in saved.get("training", {}).items():
        if name in layers:
            layers[name].training = training


def restore_groups(module: nn.Module, optimizers: list[Optimizer], saved: dict[str, Any]) -> None:
    """Give each optimizer the parameter groups that callbacks or hooks had added."""
    parameters = dict(module.named_parameters())
    for optimizer, groups in zip(optimizers, saved.get("groups", []), strict=False):
        known = all(name in parameters for group in groups for name in group)
        if known and [len(g) for g in groups] != [len(g["params"]) for g in optimizer.param_groups]:
            settings = [*optimizer.param_groups, *[optimizer.param_groups[0]] * len(groups)]
            optimizer.param_groups = [
                {**before, "params": [parameters[name] for name in group]}
                for before, group in zip(settings, groups, strict=False)
            ]


def check_trainable(trainer: pl.Trainer) -> None:
    """Raise RanksDifferError if flags differ, then let the strategy average all gradients."""
    strategy: Any = trainer.strategy
    if trainer.world_size > 1:
        own = read_flags(trainer)
        if len({*gather_checksums([json.dumps(own).encode()], trainer)}) > 1:
            _refuse_differences([unpack(packed) for packed in gather(own, trainer)], trainer.current_epoch)
    if hasattr(strategy, "update_trainable"):
        strategy.update_trainable()


def _refuse_differences(ranks: list[dict[str, Any]], epoch: int) -> None:
    for rank, other in enumerate(ranks):
        for kind, what in (("requires_grad", "requires_grad"), ("training", "train() or eval()")):
            first, own = ranks[0][kind], other[kind]
            differ = sorted(n for n in first.keys() | own.keys() if first.get(n) != own.get(n))
            if differ:
                names = [name or "the module" for name in differ]
                raise RanksDifferError(
                    f"epoch {epoch} (counted from 0): {what} of {listed(names, 3)} on rank {rank} differs from rank 0; set it the same "
                    "way on all ranks."
                )
