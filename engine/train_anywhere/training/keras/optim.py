"""Create Keras optimizers and learning rate schedules."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from train_anywhere.config.choices import (
    AdamW,
    NamedSchedule,
    OtherOptimizer,
    OtherSchedule,
    Schedule,
    Sgd,
)
from train_anywhere.config.instantiate import locate, make_kind
from train_anywhere.config.keys import TARGET, OpenSection
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError
from train_anywhere.training.keras.private import rate_source
from train_anywhere.training.plan import (
    Plan,
    group_settings,
    lr_factor,
    matching_groups,
    scale_lr,
    warmup_steps,
)


class LearningRate(keras.optimizers.schedules.LearningRateSchedule):
    """`lr` times `train_anywhere.training.plan.lr_factor`, part of the step's graph."""

    def __init__(self, lr: float, schedule: NamedSchedule, steps_per_epoch: int, total_steps: int) -> None:
        self.lr, self.schedule = lr, schedule
        self.steps_per_epoch, self.total_steps = steps_per_epoch, total_steps
        self.warmup = warmup_steps(schedule, steps_per_epoch)

    def __call__(self, step: tf.Tensor | int) -> tf.Tensor:
        """Return the learning rate, float32 [], of the step after `step` steps (an integer, [])."""
        s, done = self.schedule, tf.cast(step, tf.float64)
        factor = tf.ones([], tf.float64)
        if s.name == "cosine":
            progress = tf.minimum((done - self.warmup) / max(1, self.total_steps - self.warmup), 1.0)
            factor = s.final + (1 - s.final) * 0.5 * (1 + tf.cos(math.pi * progress))
        elif s.name == "step":
            at = tf.constant([round(m * self.steps_per_epoch) for m in s.milestones], tf.float64)
            factor = tf.constant(s.gamma, tf.float64) ** tf.reduce_sum(tf.cast(done >= at, tf.float64))
        if self.warmup:
            factor = tf.where(done < self.warmup, (done + 1) / self.warmup, factor)
        return tf.cast(self.lr * factor, tf.float32)


class EpochSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule that calls `inner` with the number of the epoch, from 0."""

    def __init__(self, inner: Callable[[tf.Tensor | int], tf.Tensor], steps_per_epoch: int) -> None:
        self.inner, self.steps_per_epoch = inner, steps_per_epoch

    def __call__(self, step: tf.Tensor | int) -> tf.Tensor:
        """Return the learning rate, float32 [], of the step after `step` steps (an integer, [])."""
        return self.inner(step // self.steps_per_epoch)


class Grouped:
    """Mixin of optimizers with learning rates and weight decays by path, see `optimizer.groups` and `optimizer.no_decay`.

    Args:
        section: the section `optimizer`.
    """

    def __init__(self, section: Sgd | AdamW, **options: Any) -> None:
        super().__init__(**options)
        self.section, self.undecayed = section, frozenset[str]()

    def exclude_from_weight_decay(self, var_list: Sequence[keras.Variable]) -> None:
        """Do not decay these variables."""
        self.undecayed = frozenset(v.path for v in var_list)

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Create the state of each variable, and find its settings."""
        super().build(variables)  # type: ignore[misc]
        local = tf.distribute.get_strategy().experimental_local_results
        # by reference: the variable's number, the factor of its learning rate, its weight decay
        settings: dict[Any, tuple[int, float, float]] = {}
        for number, variable in enumerate(variables):
            lr, decay = group_settings(matching_groups(self.section.groups, variable.path))
            factor = 1.0 if lr is None else lr / self.section.lr
            decay = self.section.weight_decay if decay is None else decay
            decay = 0.0 if variable.path in self.undecayed else decay
            settings |= {copy.ref(): (number, factor, decay) for copy in local(variable.value)}
        self.settings = settings.__getitem__


class KerasSGD(Grouped, keras.optimizers.SGD):
    """Keras' SGD with torch's arithmetic: decay in the gradient, momentum without the rate.

    g = gradient + decay * w;  m = momentum * m + g;  w -= lr * (g + momentum * m if nesterov else m).
    Keras' own applies decay separately from the momentum and accumulates lr * g, which differs once the learning rate changes.
    """

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        """Update one variable. The gradient has its shape and dtype, the rate its dtype."""
        number, factor, decay = self.settings(variable.ref())
        step = gradient + decay * variable if decay else gradient
        if self.momentum:
            new = self.momentum * self.momentums[number] + step
            self.assign(self.momentums[number], new)
            step = step + self.momentum * new if self.nesterov else new
        self.assign_sub(variable, tf.cast(learning_rate * factor, variable.dtype) * step)


class KerasAdamW(Grouped, keras.optimizers.Adam):
    """Keras' AdamW, with settings of each variable."""

    def update_step(self, gradient: Any, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        """Update one variable. The gradient may be sparse."""
        _, factor, decay = self.settings(variable.ref())
        rate = tf.cast(learning_rate, variable.dtype) * factor
        if decay:
            self.assign_sub(variable, variable * decay * rate)
        super().update_step(gradient, variable, rate)


def make_optimizer(config: Config, plan: Plan, world_size: int) -> keras.optimizers.Optimizer:
    """Return the optimizer of the configuration with schedule, clipping and loss scaling.

    `world_size` is the number of devices that share the global batch. Raises ConfigError for a target that does not fit.
    """
    o, clip = config.optimizer, config.trainer.gradient_clip_val
    by_norm = config.trainer.gradient_clip_algorithm == "norm"
    clipping = {"global_clipnorm" if by_norm else "clipvalue": clip} if clip else {}
    lr = scale_lr(o.lr, o.scale_lr, world_size)
    rate: Any = make_schedule(config.schedule, lr, plan)
    if callbacks_can_set_rate(config.callbacks, config.schedule):
        rate = lr  # a number: callbacks can change it
    if isinstance(o, OtherOptimizer):
        optimizer = _other(o, rate, clipping)
    elif o.name == "sgd":
        momentum = {"momentum": float(o.momentum), "nesterov": o.nesterov}
        optimizer = KerasSGD(o, name="sgd", learning_rate=rate, **momentum, **clipping)
    else:
        betas = dict(zip(("beta_1", "beta_2"), o.betas, strict=True))
        optimizer = KerasAdamW(o, name="adamw", learning_rate=rate, epsilon=o.eps, **betas, **clipping)
    scales = config.trainer.precision == "16-mixed"
    return keras.optimizers.LossScaleOptimizer(optimizer) if scales else optimizer


def make_schedule(
    schedule: Schedule, lr: float, plan: Plan
) -> keras.optimizers.schedules.LearningRateSchedule:
    """Return the schedule with highest rate `lr`. Raises ConfigError for another object."""
    if not isinstance(schedule, OtherSchedule):
        return LearningRate(lr, schedule, plan.steps_per_epoch, plan.total_steps)
    length = plan.max_epochs if schedule.interval == "epoch" else plan.total_steps
    kind = keras.optimizers.schedules.LearningRateSchedule
    name = "LearningRateSchedule of Keras, such as keras.optimizers.schedules.ExponentialDecay"
    supplied = {"initial_learning_rate": lr, "decay_steps": length}
    user_schedule = make_kind(schedule, "schedule", "keras", kind, name, **supplied)
    by_epoch = schedule.interval == "epoch"
    return EpochSchedule(user_schedule, plan.steps_per_epoch) if by_epoch else user_schedule


def make_rate_reader(optimizer: keras.optimizers.Optimizer) -> Callable[[], float]:
    """Return a function that returns the learning rate of the optimizer's last step."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    # `iterations` counts less if it accumulates
    count = next(v for v in inner.variables if v.name == "iteration")

    def rate() -> float:
        used, step = rate_source(inner), max(0, int(count.numpy()) - 1)
        if isinstance(used, LearningRate):  # in double precision, as Lightning logs it
            return used.lr * lr_factor(used.schedule, step, used.steps_per_epoch, used.total_steps)
        scheduled = isinstance(used, keras.optimizers.schedules.LearningRateSchedule)
        return float(tf.convert_to_tensor(used(step) if scheduled else inner.learning_rate))

    return rate


def callbacks_can_set_rate(callbacks: Mapping[str, OpenSection], schedule: Schedule) -> bool:
    """Return whether callbacks may set the rate. Raises ConfigError if a schedule does so too."""
    kinds = (keras.callbacks.LearningRateScheduler, keras.callbacks.ReduceLROnPlateau)
    dotted = {name: c.target["keras"] for name, c in callbacks.items() if "keras" in c.target}
    targets = {f"callbacks.{name}": locate(d, f"callbacks.{name}.{TARGET}") for name, d in dotted.items()}
    setters = [key for key, t in targets.items() if isinstance(t, type) and issubclass(t, kinds)]
    constant = schedule.name == "constant" and not getattr(schedule, "warmup_epochs", 1)
    if setters and not constant:
        raise ConfigError(
            f"{setters[0]} sets the learning rate, and so does schedule={schedule.name}; use schedule=constant "
            "schedule.warmup_epochs=0."
        )
    return constant and bool(dotted)


def _other(o: OtherOptimizer, rate: Any, clipping: Mapping[str, float]) -> keras.optimizers.Optimizer:
    """Create the target's optimizer with `learning_rate`, and with clipping if requested."""
    dotted = o.target["keras"]
    if o.groups:
        raise ConfigError(
            f"optimizer.groups can't be used with optimizer.{TARGET}={dotted}: an optimizer of Keras has one learning rate for all "
            "variables; use optimizer=adamw or optimizer=sgd, which this project extends."
        )
    clips = ("global_clipnorm", "clipnorm", "clipvalue")
    if clipping and (own := next((name for name in clips if o.arguments.get(name) is not None), None)):
        raise ConfigError(
            f"optimizer.{own}={o.arguments[own]} and trainer.gradient_clip_val={min(clipping.values())} both clip the gradients; leave "
            f"optimizer.{own} out, or use trainer.gradient_clip_val=null."
        )
    supplied = {"learning_rate": rate, **clipping}
    parameters = inspect.signature(locate(dotted, f"optimizer.{TARGET}")).parameters
    has_keywords = any(p.kind == p.VAR_KEYWORD for p in parameters.values())
    missing = [name for name in supplied if name not in parameters and name not in o.arguments]
    if missing and not has_keywords:
        key = "optimizer.lr" if missing[0] == "learning_rate" else "trainer.gradient_clip_val"
        raise ConfigError(
            f"optimizer.{TARGET}={dotted} takes no {missing[0]}, so {key} would have no effect."
        )
    section = replace(o, arguments={**{name: supplied[name] for name in missing}, **o.arguments})
    kind = keras.optimizers.Optimizer
    return make_kind(section, "optimizer", "keras", kind, "keras.optimizers.Optimizer", **supplied)
