"""Learning rate schedules as a factor of `optimizer.lr`: one formula for both frameworks."""

import math

from train_anywhere.config.choices import NamedSchedule, Optimizer, OtherSchedule, Schedule
from train_anywhere.training.plan import Plan


def learning_rate(optimizer: Optimizer, schedule: Schedule, plan: Plan, step: int, world_size: int) -> float:
    """Return the learning rate of optimizer step `step`, which counts from 0, for a schedule of this project.

    `world_size` is the number of devices that share the global batch.
    """
    assert not isinstance(schedule, OtherSchedule)
    base = scale_lr(optimizer.lr, optimizer.scale_lr, world_size)
    return base * lr_factor(schedule, step, plan.steps_per_epoch, plan.total_steps)


def lr_factor(schedule: NamedSchedule, step: int, steps_per_epoch: int, total_steps: int) -> float:
    """Return the multiplier of the learning rate at an optimizer step.

    Linear warm-up from 1/warmup to 1 (Goyal et al. 2017, https://arxiv.org/abs/1706.02677), then constant, half a cosine
    (Loshchilov & Hutter 2017, https://arxiv.org/abs/1608.03983) over the steps that remain, or steps at the milestones.

    `step` counts from 0. `steps_per_epoch` and `total_steps` are the optimizer steps of an epoch and of the run.
    """
    warmup = warmup_steps(schedule, steps_per_epoch)
    if step < warmup:
        return (step + 1) / warmup
    if schedule.name == "cosine":
        done = min(1.0, (step - warmup) / max(1, total_steps - warmup))
        return schedule.final + (1 - schedule.final) * 0.5 * (1 + math.cos(math.pi * done))
    if schedule.name == "step":
        passed = sum(step >= round(m * steps_per_epoch) for m in schedule.milestones)
        return float(schedule.gamma**passed)
    return 1.0


def warmup_steps(schedule: NamedSchedule, steps_per_epoch: int) -> int:
    """Return the length of the warm-up in optimizer steps."""
    return round(schedule.warmup_epochs * steps_per_epoch)


def scale_lr(lr: float, rule: str, world_size: int) -> float:
    """Return the learning rate for a number of ranks.

    The rule `linear` keeps the step per sample when the global batch grows with the ranks (Goyal et al. 2017); `sqrt` keeps the variance
    of the step (Krizhevsky 2014, https://arxiv.org/abs/1404.5997); `none` changes nothing, which is right for a constant global batch.
    """
    return lr * {"none": 1.0, "linear": float(world_size), "sqrt": math.sqrt(world_size)}[rule]
