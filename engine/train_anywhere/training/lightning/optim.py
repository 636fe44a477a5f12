"""Optimizers and torch's own schedules; a schedule of this project is applied at each step by `train_anywhere.training.schedules`."""

from typing import Any

from torch import nn, optim
from torch.optim.lr_scheduler import ReduceLROnPlateau

from train_anywhere.config.choices import AdamW, OtherOptimizer, OtherSchedule, Sgd
from train_anywhere.config.instantiate import instantiate, refusals
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError
from train_anywhere.training.lightning.hardware import fuses, place_state
from train_anywhere.training.plan import Plan
from train_anywhere.training.schedules import scaled_lr


def configured_optimizer(config: Config, plan: Plan, network: nn.Module, devices: int) -> Any:
    """What `configure_optimizers` of a module returns for the configuration.

    Args:
        devices: that share the global batch.
    """
    lr = scaled_lr(config.optimizer.lr, config.optimizer.scale_lr, devices)
    optimizer = make_optimizer(config, network, lr)
    if not isinstance(config.schedule, OtherSchedule):
        return optimizer
    scheduler = make_scheduler(config, config.schedule, plan, optimizer)
    how = {
        "scheduler": scheduler,
        "interval": config.schedule.interval,
        "monitor": config.checkpoint.monitor,
    }
    return {"optimizer": optimizer, "lr_scheduler": how}


def make_optimizer(config: Config, network: nn.Module, lr: float | None = None) -> optim.Optimizer:
    """The optimizer that the configuration names, for all parameters that are trained.

    Args:
        lr: learning rate to begin with; None: the one of the configuration.

    Raises:
        ConfigError: it does not take its arguments, or these parameters.
    """
    chosen, fused = config.optimizer, fuses(network, config.trainer.precision) or None
    groups, lr = parameter_groups(network, chosen.no_decay), chosen.lr if lr is None else lr
    match chosen:
        case Sgd(momentum=momentum, nesterov=nesterov, weight_decay=decay):
            return optim.SGD(
                groups, lr, momentum=momentum, nesterov=nesterov, weight_decay=decay, fused=fused
            )
        case AdamW(betas=betas, eps=eps, weight_decay=decay):
            both = betas[0], betas[1]
            return optim.AdamW(groups, lr, betas=both, eps=eps, weight_decay=decay, fused=fused)
    with refusals(f"optimizer._target_={chosen.target['lightning']}"):
        made = instantiate(chosen, "optimizer", "lightning", params=groups, lr=lr)
    if not isinstance(made, optim.Optimizer):
        raise ConfigError(
            f"optimizer._target_={chosen.target['lightning']} made a {type(made).__name__}, which is no torch.optim.Optimizer."
        )
    return made


def parameter_groups(network: nn.Module, no_decay: list[str]) -> list[dict[str, Any]]:
    """All parameters that are trained, those without weight decay in a group of their own.

    Args:
        no_decay: words; one of them is a part of the parameter's name, or of the class of its layer, in any case.
    """
    words = [word.lower() for word in no_decay]
    groups: dict[bool, list[nn.Parameter]] = {False: [], True: []}
    for name, parameter in network.named_parameters():
        layer = network.get_submodule(name.rpartition(".")[0])
        described = f"{name} {type(layer).__name__}".lower()
        if parameter.requires_grad:
            groups[any(word in described for word in words)].append(parameter)
    kept: list[dict[str, Any]] = [{"params": groups[False]}] if groups[False] or not groups[True] else []
    return [*kept, {"params": groups[True], "weight_decay": 0.0}] if groups[True] else kept


def apply_settings(config: Config, network: nn.Module, optimizer: optim.Optimizer) -> None:
    """Give a restored optimizer the settings of the configuration, which may have changed since it was saved; each group its own.

    The learning rate is left alone: it is set at each step. Of another optimizer only what the configuration says is set: it may keep
    a part of its state among its settings.
    """
    fresh = make_optimizer(config, network).param_groups
    chosen = config.optimizer
    written = {*chosen.arguments, "weight_decay"} if isinstance(chosen, OtherOptimizer) else None
    for group, settings in zip(optimizer.param_groups, fresh, strict=False):  # callbacks may have added some
        names = set(settings) - {"params", "lr"}
        group.update({name: settings[name] for name in (names if written is None else names & written)})
    if written is None:
        place_state(optimizer)


def make_scheduler(config: Config, schedule: OtherSchedule, plan: Plan, optimizer: optim.Optimizer) -> Any:
    """Torch's scheduler that `schedule` names.

    Raises:
        ConfigError: it does not take its arguments, or watches a metric that nobody names.
    """
    dotted = schedule.target["lightning"]
    by_step = schedule.interval == "step"
    sizes = {
        "total_steps": plan.total_steps if by_step else plan.max_epochs,
        "steps_per_epoch": plan.steps_per_epoch if by_step else 1,
        "epochs": plan.max_epochs,
    }
    with refusals(f"schedule._target_={dotted}"):
        scheduler = instantiate(schedule, "schedule", "lightning", optimizer=optimizer, **sizes)
    if isinstance(scheduler, ReduceLROnPlateau):
        _check_plateau(config, schedule, scheduler)
    return scheduler


def _check_plateau(config: Config, schedule: OtherSchedule, scheduler: ReduceLROnPlateau) -> None:
    """Raise ConfigError unless it watches `checkpoint.monitor`, once an epoch, in the right direction."""
    watched, mode = config.checkpoint.monitor, config.checkpoint.mode
    if watched is None:
        raise ConfigError("ReduceLROnPlateau watches checkpoint.monitor; use checkpoint.monitor=NAME.")
    if schedule.interval == "step":
        raise ConfigError("ReduceLROnPlateau is asked after a validation; use schedule.interval=epoch.")
    if mode not in (None, scheduler.mode):
        raise ConfigError(
            f"ReduceLROnPlateau watches {watched}, of which the {mode} is best, and its own mode is {scheduler.mode}; use "
            f"schedule.mode={mode}."
        )
