"""Optimizers and the learning rate over the run."""

from collections.abc import Iterable

from torch import nn, optim

from src.plan import Plan
from src.schedules import factor, scaled_lr
from src.schema import AdamW, Config, Optimizer, Schedule, Sgd


def make_optimizer(config: Optimizer, parameters: Iterable[nn.Parameter], world_size: int) -> optim.Optimizer:
    """The optimizer that `config` names, its learning rate scaled for the number of ranks."""
    lr = scaled_lr(config.lr, config.scale_lr, world_size)
    match config:
        case Sgd(momentum=momentum, nesterov=nesterov, weight_decay=decay):
            return optim.SGD(parameters, lr, momentum=momentum, nesterov=nesterov, weight_decay=decay)
        case AdamW(betas=[beta1, beta2], eps=eps, weight_decay=decay):
            return optim.AdamW(parameters, lr, betas=(beta1, beta2), eps=eps, weight_decay=decay)
    raise NotImplementedError(config.name)


def make_schedule(config: Schedule, optimizer: optim.Optimizer, plan: Plan) -> optim.lr_scheduler.LambdaLR:
    """`src.schedules.factor`, as torch wants it; step it once per optimizer step."""
    return optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: factor(config, step, plan.steps_per_epoch, plan.total_steps)
    )


def learning_rate(config: Config, plan: Plan, step: int, world_size: int) -> float:
    """The learning rate of optimizer step `step`, which counts from 0."""
    base = scaled_lr(config.optimizer.lr, config.optimizer.scale_lr, world_size)
    return base * factor(config.schedule, step, plan.steps_per_epoch, plan.total_steps)
