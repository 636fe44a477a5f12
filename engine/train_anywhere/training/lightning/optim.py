"""Create optimizers and torch's schedules; this project's schedules are applied at each step, see `train_anywhere.training.plan`."""

from typing import Any

from torch import nn, optim
from torch.optim.lr_scheduler import ReduceLROnPlateau

from train_anywhere.config.choices import AdamW, Optimizer, OtherOptimizer, OtherSchedule, Sgd
from train_anywhere.config.instantiate import explain_target_errors, instantiate
from train_anywhere.config.schema import Checkpoint, Config
from train_anywhere.errors import ConfigError
from train_anywhere.training.lightning.hardware import can_fuse, match_state_layout
from train_anywhere.training.plan import Plan, scale_lr


def configure_optimizer(config: Config, plan: Plan, network: nn.Module, devices: int) -> Any:
    """Return the optimizer and schedule of the configuration as a module's `configure_optimizers` does; `devices` share the batch."""
    lr = scale_lr(config.optimizer.lr, config.optimizer.scale_lr, devices)
    optimizer = make_optimizer(config.optimizer, config.trainer.precision, network, lr)
    if not isinstance(config.schedule, OtherSchedule):
        return optimizer
    scheduler = make_scheduler(config.schedule, config.checkpoint, plan, optimizer)
    settings = {
        "scheduler": scheduler,
        "interval": config.schedule.interval,
        "monitor": config.checkpoint.monitor,
    }
    return {"optimizer": optimizer, "lr_scheduler": settings}


def make_optimizer(
    chosen: Optimizer, precision: str, network: nn.Module, lr: float | None = None
) -> optim.Optimizer:
    """Return the optimizer that the configuration names, for all trainable parameters; `lr` replaces its learning rate.

    Raises:
        ConfigError: it does not take its arguments or these parameters.
    """
    fused = can_fuse(network, precision) or None
    groups, lr = parameter_groups(network, chosen.no_decay), chosen.lr if lr is None else lr
    match chosen:
        case Sgd(momentum=momentum, nesterov=nesterov, weight_decay=decay):
            return optim.SGD(
                groups, lr, momentum=momentum, nesterov=nesterov, weight_decay=decay, fused=fused
            )
        case AdamW(betas=betas, eps=eps, weight_decay=decay):
            pair = betas[0], betas[1]
            return optim.AdamW(groups, lr, betas=pair, eps=eps, weight_decay=decay, fused=fused)
    with explain_target_errors(f"optimizer._target_={chosen.target['lightning']}"):
        created = instantiate(chosen, "optimizer", "lightning", params=groups, lr=lr)
    if not isinstance(created, optim.Optimizer):
        raise ConfigError(
            f"optimizer._target_={chosen.target['lightning']} returns a {type(created).__name__}, which is not a torch.optim.Optimizer."
        )
    return created


def parameter_groups(network: nn.Module, no_decay: list[str]) -> list[dict[str, Any]]:
    """Return all trainable parameters, those without weight decay in a second group.

    A parameter has no weight decay if a string of `no_decay` is in its name or its layer's class, ignoring case.
    """
    words = [word.lower() for word in no_decay]
    groups: dict[bool, list[nn.Parameter]] = {False: [], True: []}
    for name, parameter in network.named_parameters():
        layer = network.get_submodule(name.rpartition(".")[0])
        described = f"{name} {type(layer).__name__}".lower()
        if parameter.requires_grad:
            groups[any(word in described for word in words)].append(parameter)
    decayed: list[dict[str, Any]] = [{"params": groups[False]}] if groups[False] or not groups[True] else []
    return [*decayed, {"params": groups[True], "weight_decay": 0.0}] if groups[True] else decayed


def apply_settings(chosen: Optimizer, precision: str, network: nn.Module, optimizer: optim.Optimizer) -> None:
    """Set the settings of the configuration, which may have changed, in each group of a restored optimizer.

    The learning rate is not set, because each step sets it. For an optimizer that is not built in (`_target_`), only settings in the
    configuration are set, because it may store a part of its state in the others.
    """
    fresh = make_optimizer(chosen, precision, network).param_groups
    written = {*chosen.arguments, "weight_decay"} if isinstance(chosen, OtherOptimizer) else None
    for group, settings in zip(optimizer.param_groups, fresh, strict=False):  # callbacks may have added some
        names = set(settings) - {"params", "lr"}
        group.update({name: settings[name] for name in (names if written is None else names & written)})
    if written is None:
        match_state_layout(optimizer)


def make_scheduler(
    schedule: OtherSchedule, checkpoint: Checkpoint, plan: Plan, optimizer: optim.Optimizer
) -> Any:
    """Return torch's scheduler that `schedule` names.

    Raises:
        ConfigError: it does not take its arguments, or watches a metric that is not set.
    """
    dotted = schedule.target["lightning"]
    by_step = schedule.interval == "step"
    sizes = {
        "total_steps": plan.total_steps if by_step else plan.max_epochs,
        "steps_per_epoch": plan.steps_per_epoch if by_step else 1,
        "epochs": plan.max_epochs,
    }
    with explain_target_errors(f"schedule._target_={dotted}"):
        scheduler = instantiate(schedule, "schedule", "lightning", optimizer=optimizer, **sizes)
    if isinstance(scheduler, ReduceLROnPlateau):
        _check_plateau(schedule, checkpoint, scheduler)
    return scheduler


def _check_plateau(schedule: OtherSchedule, checkpoint: Checkpoint, scheduler: ReduceLROnPlateau) -> None:
    """Raise ConfigError unless the scheduler watches `checkpoint.monitor`, once per epoch, in the right direction."""
    watched, mode = checkpoint.monitor, checkpoint.mode
    if watched is None:
        raise ConfigError(
            "ReduceLROnPlateau watches checkpoint.monitor, which is not set; use checkpoint.monitor=NAME."
        )
    if schedule.interval == "step":
        raise ConfigError("ReduceLROnPlateau is updated after a validation; use schedule.interval=epoch.")
    if mode not in (None, scheduler.mode):
        raise ConfigError(
            f"ReduceLROnPlateau has mode={scheduler.mode}, and it watches {watched}, of which the {mode} is best; use "
            f"schedule.mode={mode}."
        )
