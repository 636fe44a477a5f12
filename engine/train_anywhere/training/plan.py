"""The numbers of batches and steps of a run, its validations, and what resuming changes."""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from train_anywhere.checkpoints.disk.manifest import OWN_LOOP, SavedCheckpoint
from train_anywhere.config.checks.contradictions import batch_size_problem
from train_anywhere.config.checks.strategy_table import FrameworkName
from train_anywhere.config.choices import (
    Model,
    NamedSchedule,
    Optimizer,
    OtherSchedule,
    ParameterGroup,
    Schedule,
)
from train_anywhere.config.instantiate import instantiate
from train_anywhere.config.limits import MAX_COUNT
from train_anywhere.config.schema import Config, LimitBatches, Trainer
from train_anywhere.config.strict import did_you_mean
from train_anywhere.errors import CheckpointError, ConfigError, listed
from train_anywhere.files.terminal.printable import printable


@dataclass
class Plan:
    """The size of a run.

    Attributes:
        batch_per_rank: rows of one batch on one device that shares the global batch; 0 if they are not known.
        train_batches: training batches of an epoch.
        max_epochs: largest number of epochs; `total_steps` may end the last one early.
        val_every: optimizer steps between two validations of an epoch, or of the run if `check_val_every_n_epoch` is null.
        val_batches: validation batches; 0 turns validation off.
        test_batches: test batches; 0 turns the test off.
        known: whether the data has been opened. Lightning opens the loaders of a user's module during fit.
    """

    batch_per_rank: int
    train_batches: int
    accumulate: int
    steps_per_epoch: int
    max_epochs: int
    total_steps: int
    val_every: int
    val_batches: int
    test_batches: int
    known: bool = True

    @property
    def steps_known(self) -> bool:
        """Whether the number of steps is known: a loader may have no length."""
        return self.known and self.total_steps < MAX_COUNT

    def update(self, other: "Plan") -> None:
        """Take the values of another plan, which was made when the data was opened."""
        vars(self).update(vars(other))


def make_plan(config: Config, train: int, val: int, test: int, world_size: int) -> Plan:
    """Resolve batch size, limits, `max_steps` and `fast_dev_run`. Raises ConfigError.

    `train`, `val` and `test` are the batches of each split over all ranks; `world_size` is the number of ranks that share the global batch.
    """
    t, batch = config.trainer, config.data.batch_size
    parts, accumulate = count_parts(config), batches_per_step(config)
    problems = [batch_size_problem(batch, world_size, "ranks"), unmeasured_problem(t, val)]
    if parts > 1:
        problems.append(batch_size_problem(batch // parts, world_size, "ranks", "trainer.micro_batch"))
    train = limit_batches(train, t.overfit_batches or t.limit_train_batches, t.fast_dev_run)
    train *= 1 if t.fast_dev_run else parts
    if train < accumulate:
        problems.append(
            f"an epoch has {train} batches, fewer than trainer.accumulate_grad_batches={accumulate}, so no step would be "
            "made; accumulate fewer, use a smaller data.batch_size or a larger trainer.limit_train_batches."
        )
    steps, every = train // accumulate, t.val_check_interval
    within = val and t.limit_val_batches and t.check_val_every_n_epoch is not None and not t.fast_dev_run
    if steps and within and isinstance(every, int) and every > steps:
        problems.append(
            f"trainer.val_check_interval={every} is more than the {steps} optimizer steps of an epoch; use fewer, or "
            "trainer.check_val_every_n_epoch=null to count steps over epochs."
        )
    if found := [problem for problem in problems if problem]:
        raise ConfigError(*found)
    limit_val = t.limit_val_batches and (t.overfit_batches or t.limit_val_batches)
    val = limit_batches(val, limit_val, t.fast_dev_run)
    test = limit_batches(test, t.limit_test_batches, t.fast_dev_run)
    every = every if isinstance(every, int) else max(1, int(steps * every))
    return _plan(config, batch // world_size // parts, steps * accumulate, steps, every, val, test)


def _plan(config: Config, batch: int, train: int, steps: int, every: int, val: int, test: int) -> Plan:
    """Return the plan of epochs with so many `train` batches and optimizer `steps`."""
    t = config.trainer
    total = steps * (1 if t.fast_dev_run else t.epoch_limit)
    total = min(total, t.max_steps or total)
    epochs = -(-total // max(1, steps))
    return Plan(batch, train, batches_per_step(config), steps, epochs, total, every, val, test)


def unmeasured_problem(trainer: Trainer, val: int) -> str | None:
    """Return the problem of early stopping without `val`idation batches, or None."""
    stopping = trainer.early_stopping
    unmeasured = not val and trainer.limit_val_batches and "val" in (stopping.monitor or "val")
    if not unmeasured or stopping.patience is None:
        return None
    return (
        f"trainer.early_stopping.patience={stopping.patience} counts validations, and there is no validation data; use "
        "trainer.early_stopping.patience=null, or monitor a training metric: trainer.early_stopping.monitor=NAME."
    )


def make_user_plan(config: Config, batches: float, validates: bool, tests: bool, batch: int | None) -> Plan:
    """Return the plan of a LightningModule, whose limits Lightning applies itself.

    `batches` of an epoch may be infinite; `batch` is the rows of one, if known. Raises ConfigError for early stopping without validation.
    """
    if problem := unmeasured_problem(config.trainer, validates):
        raise ConfigError(problem)
    train = int(min(batches, MAX_COUNT))
    steps = -(-train // batches_per_step(config))
    return _plan(config, batch or 0, train, steps, steps, int(validates), int(tests))


def validation_notes(trainer: Trainer, plan: Plan) -> list[str]:
    """Return a line for a run without validation data that does not turn validation off."""
    missing = not plan.val_batches and trainer.limit_val_batches
    return ["there is no validation data: the newest checkpoint counts as the best."] if missing else []


def count_parts(config: Config) -> int:
    """Return the number of parts of `trainer.micro_batch` rows of a global batch."""
    return max(1, config.data.batch_size // (config.trainer.micro_batch or config.data.batch_size))


def batches_per_step(config: Config) -> int:
    """Return the number of batches whose gradients are accumulated for one optimizer step."""
    t = config.trainer
    return 1 if t.fast_dev_run else t.accumulate_grad_batches * count_parts(config)


def refuse_parts(config: Config, kind: str) -> None:
    """Raise ConfigError if `trainer.micro_batch` is set, for batches of a user's object."""
    if count_parts(config) > 1:
        raise ConfigError(
            f"trainer.micro_batch={config.trainer.micro_batch} divides the batches that run.fit makes of rows (__len__ and __getitem__), "
            f"not those of a {kind}: use smaller batches there."
        )


def batchnorm_notes(config: Config, state: Iterable[str]) -> list[str]:
    """Return a line if batch normalization sees only the rows of a part. `state` names what a model updates in its forward pass."""
    normalizes = count_parts(config) > 1 and any(n.endswith(("running_mean", "moving_mean")) for n in state)
    line = f"batch normalization uses the {config.trainer.micro_batch} rows of trainer.micro_batch, so results differ from whole batches."
    return [line] if normalizes else []


def validation_due(trainer: Trainer, plan: Plan, epoch: int, batch: int, step: int) -> bool:
    """Return whether a validation follows an optimizer step, as the last one of an epoch with validations or of an incomplete one.

    `epoch` counts from 0; `batch` batches of it, and `step` optimizer steps of the run, are done.
    """
    every = trainer.check_val_every_n_epoch
    listed = every is None or (epoch + 1) % every == 0
    if step >= plan.total_steps or not plan.val_batches:
        return plan.val_batches > 0 and (listed or batch < plan.train_batches)
    return listed and (step if every is None else batch // plan.accumulate) % plan.val_every == 0


def limit_batches(batches: int, limit: LimitBatches, fast_dev_run: bool) -> int:
    """Return `batches` limited to a number (int) or a fraction (float, at least one batch)."""
    if fast_dev_run:
        return min(1, batches)
    if isinstance(limit, int):
        return min(limit, batches)
    return min(batches, max(1, int(batches * limit))) if limit else 0


def is_multiple(number: int, every: int | None) -> bool:
    """Return whether `number` is a multiple of `every`. False if `every` is None."""
    return every is not None and number % every == 0


def build_network(config: Config, facts: Mapping[str, Any]) -> Any:
    """Return the network that `model` names, with its arguments of `from_data` from `facts`.

    Raises ConfigError if the model does not accept its arguments, or the data set lacks a fact.
    """
    if problems := missing_facts(config.model, config.data.name, facts):
        raise ConfigError(*([facts["unknown"]] if "unknown" in facts else problems))
    supplied = {name: facts[fact] for name, fact in config.model.from_data.items() if fact in facts}
    return instantiate(config.model, "model", config.framework, **supplied)


def missing_facts(model: Model, data: str, facts: Collection[str]) -> list[str]:
    """Return a message for each argument in `model.from_data` whose fact is not in `facts`."""
    return [
        f"model.from_data.{argument}={fact}: data={data} has no '{fact}'{did_you_mean(fact, facts)} "
        f"Use another model= for this data, or give model.{argument} a value."
        for argument, fact in model.from_data.items()
        if fact not in facts and argument not in model.arguments
    ]


def learning_rate(
    optimizer: Optimizer,
    schedule: Schedule,
    plan: Plan,
    step: int,
    world_size: int,
    lr: float | None = None,
) -> float:
    """Return the learning rate of optimizer step `step`, which counts from 0.

    `world_size` is the number of devices that share the global batch; `lr` is that of a group of parameters.
    """
    assert not isinstance(schedule, OtherSchedule)
    base = scale_lr(optimizer.lr if lr is None else lr, optimizer.scale_lr, world_size)
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


RISE = 1.5
"""The resumed learning rate is reported if it is more than this factor above the saved one."""


def refuse_other_framework(saved: SavedCheckpoint, framework: FrameworkName) -> None:
    """Raise CheckpointError for a checkpoint that `framework` can't read."""
    if saved.framework == OWN_LOOP:
        raise CheckpointError(
            f"{saved.path} was written by a loop of your own, and only that loop can read its files; resume it with the same "
            "train=, and let the loop call run.test to test."
        )
    if saved.framework != framework:
        raise CheckpointError(
            f"{saved.path} was written with framework={saved.framework}; resume with that, or start a new run."
        )


def resume_message(saved: SavedCheckpoint, config: Config, plan: Plan, world_size: int) -> str:
    """Return the first line of a resumed run, with a warning if the learning rate rises.

    `world_size` is the number of devices that share the global batch.
    """
    line = f"resuming at step {saved.step}" + (f" of {plan.total_steps}" if plan.steps_known else "")
    before = saved.metrics.get("lr")
    if isinstance(config.schedule, OtherSchedule) or not config.task.monitors or before is None:
        return line
    now = learning_rate(config.optimizer, config.schedule, plan, saved.step - 1, world_size)
    if saved.step <= warmup_steps(config.schedule, plan.steps_per_epoch) or now <= RISE * before:
        return line
    return f"{line}; schedule={config.schedule.name} now ends there: the learning rate rises from {before:.3g} to {now:.3g}"


def device_count_message(before: int, now: int, same_batch: bool = True) -> str:
    """Return the line for a resume on `now` devices of a checkpoint of `before` devices.

    `same_batch` is false if each device reads batches from a loader of the user.
    """
    batches = "batches, " if same_batch else ""
    change = "" if same_batch else f"a step reads {now} of your loader's batches, not {before}, and "
    return (
        f"resuming a {before}-device checkpoint on {now}: {batches}weights and optimizer stay as they were, "
        f"but {change}dropout draws new random numbers."
    )


def matching_groups(groups: Sequence[ParameterGroup], name: str) -> list[ParameterGroup]:
    """Return the groups whose pattern matches the whole name of a parameter."""
    return [group for group in groups if re.fullmatch(group.match, name)]


def group_settings(groups: Iterable[ParameterGroup]) -> tuple[float | None, float | None]:
    """Return learning rate and weight decay, each of the last group that sets it, or None."""
    lr = weight_decay = None
    for group in groups:
        lr = lr if group.lr is None else group.lr
        weight_decay = weight_decay if group.weight_decay is None else group.weight_decay
    return lr, weight_decay


def refuse_unmatched(groups: Sequence[ParameterGroup], names: Sequence[str]) -> None:
    """Raise ConfigError for each pattern that matches none of the names."""
    problems = [
        f"optimizer.groups[{n}].match={group.match} matches no parameter; a pattern has to match the whole name. The names are "
        f"{printable(listed(names))}."
        for n, group in enumerate(groups)
        if not any(re.fullmatch(group.match, name) for name in names)
    ]
    if problems:
        raise ConfigError(*problems)
