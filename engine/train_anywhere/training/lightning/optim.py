"""The optimizer of the configuration, and torch's schedules."""

from typing import Any

import lightning.pytorch as pl
from torch import nn, optim
from torch.optim.lr_scheduler import ReduceLROnPlateau

from train_anywhere.config.choices import Optimizer, OtherOptimizer, OtherSchedule, Sgd
from train_anywhere.config.instantiate import explain_target_errors, instantiate, make_kind
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError
from train_anywhere.training.lightning.hardware import can_fuse, match_state_layout
from train_anywhere.training.lightning.loop.course import Course
from train_anywhere.training.plan import (
    Plan,
    group_settings,
    learning_rate,
    matching_groups,
    refuse_unmatched,
    scale_lr,
)


class ConfiguredOptimizer(pl.Callback):
    """Callback for the optimizer and schedule of the configuration.

    Attributes:
        make_optimizer: maps a module to its optimizer and schedule. A function, because copies of a module share it.
        trained: the module that `make_optimizer` was called with, if any.
    """

    def __init__(self, trainer: pl.Trainer, config: Config, course: Course, devices: int) -> None:
        self.config, self.course, self.devices = config, course, devices
        self.trained: nn.Module | None = None

        def make_optimizer(module: nn.Module) -> Any:
            trainer.fit_loop.setup_data()  # the plan depends on the length of the loaders
            course.loaders_opened(trainer)
            self.trained = module
            return configure_optimizer(config, course.plan, module, devices)

        self.make_optimizer = make_optimizer

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Apply the optimizer settings of the configuration, which may have changed."""
        config = self.config
        if self.trained is not None:
            apply_settings(config.optimizer, config.trainer.precision, self.trained, trainer.optimizers[0])

    def on_before_optimizer_step(self, trainer: pl.Trainer, module: Any, optimizer: Any) -> None:
        """Set the learning rate of the next step in all groups, unless torch's schedule does."""
        config, course = self.config, self.course
        if self.trained is not None and not isinstance(config.schedule, OtherSchedule):
            position = (config.optimizer, config.schedule, course.plan, course.steps_done, self.devices)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(*position, group.get(BASE_LR))


def configure_optimizer(config: Config, plan: Plan, network: nn.Module, devices: int) -> Any:
    """Return optimizer and schedule as `configure_optimizers` does; `devices` share the batch.

    Raises ConfigError for arguments of a target, and unless a schedule that watches a metric gets `checkpoint.monitor` once per epoch.
    """
    lr, schedule = scale_lr(config.optimizer.lr, config.optimizer.scale_lr, devices), config.schedule
    optimizer = make_optimizer(config.optimizer, config.trainer.precision, network, lr)
    if not isinstance(schedule, OtherSchedule):
        return optimizer
    by_step, watched, mode = schedule.interval == "step", config.checkpoint.monitor, config.checkpoint.mode
    sizes = {
        "total_steps": plan.total_steps if by_step else plan.max_epochs,
        "steps_per_epoch": plan.steps_per_epoch if by_step else 1,
        "epochs": plan.max_epochs,
    }
    with explain_target_errors(f"schedule._target_={schedule.target['lightning']}"):
        scheduler = instantiate(schedule, "schedule", "lightning", optimizer=optimizer, **sizes)
    if isinstance(scheduler, ReduceLROnPlateau):
        if watched is None:
            raise ConfigError(
                "ReduceLROnPlateau watches checkpoint.monitor, which is not set; use checkpoint.monitor=NAME."
            )
        if by_step:
            raise ConfigError("ReduceLROnPlateau is updated after a validation; use schedule.interval=epoch.")
        if mode not in (None, scheduler.mode):
            raise ConfigError(
                f"ReduceLROnPlateau has mode={scheduler.mode}, and it watches {watched}, of which the {mode} is best; use "
                f"schedule.mode={mode}."
            )
    watches = {"interval": schedule.interval, "monitor": watched}
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, **watches}}


def make_optimizer(
    chosen: Optimizer, precision: str, network: nn.Module, lr: float | None = None
) -> optim.Optimizer:
    """Return the configured optimizer, with another `lr` if given. Raises ConfigError if a target is none, or for its arguments."""
    lr = chosen.lr if lr is None else lr
    groups = make_groups(network, chosen, lr)
    if not isinstance(chosen, OtherOptimizer):
        options: dict[str, Any] = {"fused": can_fuse(network, precision) or None}
        options["weight_decay"] = chosen.weight_decay
        if isinstance(chosen, Sgd):
            return optim.SGD(groups, lr, momentum=chosen.momentum, nesterov=chosen.nesterov, **options)
        return optim.AdamW(groups, lr, betas=(chosen.betas[0], chosen.betas[1]), eps=chosen.eps, **options)
    supplied, kind = {"params": groups, "lr": lr}, optim.Optimizer
    created: optim.Optimizer = make_kind(
        chosen, "optimizer", "lightning", kind, "torch.optim.Optimizer", **supplied
    )
    if "weight_decay" not in created.defaults and any(g.weight_decay is not None for g in chosen.groups):
        raise ConfigError(
            f"optimizer._target_={chosen.target['lightning']} has no weight_decay, which optimizer.groups sets; leave it out there."
        )
    return created


BASE_LR = "base_lr"
"""Key of a parameter group: its learning rate before the schedule and `optimizer.scale_lr`."""


def make_groups(network: nn.Module, chosen: Optimizer, lr: float) -> list[dict[str, Any]]:
    """Return the trainable parameters, unmatched ones first, and those without weight decay last.

    A parameter has no weight decay if a string of `no_decay` is in its name or its layer's class, ignoring case. With `optimizer.groups`
    each combination of its patterns is a group, and frozen parameters are included, so that the groups stay the same when a hook or
    callback unfreezes them. `lr` is that of the optimizer, scaled by `optimizer.scale_lr`. Raises ConfigError for an unmatched pattern.
    """
    named = {n: p for n, p in network.named_parameters() if chosen.groups or p.requires_grad}
    refuse_unmatched(chosen.groups, [*named])
    numbers = {id(group): number for number, group in enumerate(chosen.groups)}
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for name, parameter in named.items():
        described = f"{name} {type(network.get_submodule(name.rpartition('.')[0])).__name__}".lower()
        undecayed = any(word.lower() in described for word in chosen.no_decay)
        matching = matching_groups(chosen.groups, name)
        key = (*(numbers[id(group)] for group in matching), undecayed)
        if key not in groups:
            own, decay = group_settings(matching)
            groups[key] = {"params": []}
            if chosen.groups:
                base = chosen.lr if own is None else own
                groups[key] |= {"lr": lr * base / chosen.lr if own else lr, BASE_LR: base}
            if undecayed or decay is not None:
                groups[key]["weight_decay"] = 0.0 if undecayed else decay
        groups[key]["params"].append(parameter)
    return [groups[key] for key in sorted(groups, key=lambda key: (len(key) > 1, key))] or [{"params": []}]


def apply_settings(chosen: Optimizer, precision: str, network: nn.Module, optimizer: optim.Optimizer) -> None:
    """Set the settings of the configuration in each group of a restored optimizer.

    The learning rate is not set, because each step sets it. For an optimizer that is not built in (`_target_`), only settings in the
    configuration are set, because it may store a part of its state in the others.
    """
    fresh, restored = make_optimizer(chosen, precision, network).param_groups, optimizer.param_groups
    if any(BASE_LR in group for group in (*fresh, *restored)):
        ours, theirs = ([[*map(id, g["params"])] for g in groups] for groups in (fresh, restored))
        if ours != theirs[: len(ours)]:
            raise ConfigError(
                "optimizer.groups sorts the parameters in another way than in the checkpoint, so their states do not fit; resume with the "
                "same patterns (lr and weight_decay may change), or start a new run with init=RUN."
            )
    written = {*chosen.arguments, "weight_decay", BASE_LR} if isinstance(chosen, OtherOptimizer) else None
    for group, settings in zip(restored, fresh, strict=False):  # callbacks may have added some
        names = set(settings) - {"params", "lr"}
        group.update({name: settings[name] for name in (names if written is None else names & written)})
    if written is None:
        match_state_layout(optimizer)
