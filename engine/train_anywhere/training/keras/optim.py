"""Optimizers and the learning rate's schedule as Keras objects."""

import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from train_anywhere.config.choices import NamedSchedule, OtherOptimizer, OtherSchedule
from train_anywhere.config.instantiate import instantiate, locate, refusals
from train_anywhere.config.open_groups import TARGET
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError
from train_anywhere.training.plan import Plan
from train_anywhere.training.schedules import learning_rate, scaled_lr, warmup_steps


class LearningRate(keras.optimizers.schedules.LearningRateSchedule):
    """`lr` times `train_anywhere.training.schedules.factor` in TensorFlow's operations: part of the step's graph.

    Args:
        lr: the highest learning rate.
        schedule: the schedule's configuration.
        steps_per_epoch, total_steps: of the plan.
    """

    def __init__(self, lr: float, schedule: NamedSchedule, steps_per_epoch: int, total_steps: int) -> None:
        self.lr, self.schedule = lr, schedule
        self.steps_per_epoch, self.total_steps = steps_per_epoch, total_steps
        self.warmup = warmup_steps(schedule, steps_per_epoch)

    def __call__(self, step: tf.Tensor | int) -> tf.Tensor:
        """The learning rate, float32 [], of the step after `step` steps (an integer, [])."""
        done = tf.cast(step, tf.float64)
        factor = self._after_warmup(done)
        if self.warmup:
            factor = tf.where(done < self.warmup, (done + 1) / self.warmup, factor)
        return tf.cast(self.lr * factor, tf.float32)

    def _after_warmup(self, done: tf.Tensor) -> tf.Tensor:
        s = self.schedule
        if s.name == "cosine":
            part = tf.minimum((done - self.warmup) / max(1, self.total_steps - self.warmup), 1.0)
            return s.final + (1 - s.final) * 0.5 * (1 + tf.cos(math.pi * part))
        if s.name == "step":
            at = tf.constant([round(m * self.steps_per_epoch) for m in s.milestones], tf.float64)
            return tf.constant(s.gamma, tf.float64) ** tf.reduce_sum(tf.cast(done >= at, tf.float64))
        return tf.ones([], tf.float64)


class OncePerEpoch(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule that is asked with the epoch's number.

    Args:
        inner: from an epoch, which counts from 0, to the learning rate.
        steps_per_epoch: optimizer steps.
    """

    def __init__(self, inner: Callable[[tf.Tensor | int], tf.Tensor], steps_per_epoch: int) -> None:
        self.inner, self.steps_per_epoch = inner, steps_per_epoch

    def __call__(self, step: tf.Tensor | int) -> tf.Tensor:
        """The learning rate, float32 [], of the step after `step` steps (an integer, [])."""
        return self.inner(step // self.steps_per_epoch)


class SGD(keras.optimizers.SGD):
    """Keras' SGD with the usual arithmetic: decay is added to the gradient, momentum gathers gradients.

    g = gradient + decay * w;  m = momentum * m + g;  w -= lr * (g + momentum * m if nesterov else m).
    Keras' own decays past the momentum and gathers lr * g, which differs once the learning rate changes.
    """

    def __init__(self, decay: float = 0.0, **options: object) -> None:
        super().__init__(**options)
        self.decay = decay

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        """Update one variable; all three have its dtype, gradient and variable its shape."""
        decayed = self.decay and self._use_weight_decay(variable)
        step = gradient + self.decay * variable if decayed else gradient
        if self.momentum:
            gathered = self.momentums[self._get_variable_index(variable)]
            new = self.momentum * gathered + step
            self.assign(gathered, new)
            step = step + self.momentum * new if self.nesterov else new
        self.assign_sub(variable, tf.cast(learning_rate, variable.dtype) * step)


class AdamW(keras.optimizers.AdamW):
    """Keras' AdamW, to the same bits, without a quarter of its operations: Keras computes for each variable what is the same for all."""

    def _backend_update_step(
        self, grads: list[Any], trainable_variables: list[keras.Variable], learning_rate: tf.Tensor
    ) -> None:
        """The moments begin at zero; the learning rate makes up for it."""
        steps = tf.cast(self.iterations + 1, tf.float32)
        mean, square = (
            1 - tf.pow(tf.constant(beta, tf.float32), steps) for beta in (self.beta_1, self.beta_2)
        )
        rate = tf.cast(learning_rate, tf.float32) * tf.sqrt(square) / mean
        super()._backend_update_step(grads, trainable_variables, rate)

    def update_step(self, gradient: Any, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        """Update one variable; the gradient may be sparse."""
        index = self._get_variable_index(variable)
        mean, square = self._momentums[index], self._velocities[index]
        self.assign_add(mean, (1 - self.beta_1) * ops.subtract(gradient, mean))
        self.assign_add(square, (1 - self.beta_2) * ops.subtract(ops.square(gradient), square))
        self.assign_sub(variable, learning_rate * mean / (ops.sqrt(square) + self.epsilon))


def make_optimizer(config: Config, plan: Plan, world_size: int) -> keras.optimizers.Optimizer:
    """The optimizer of the configuration: schedule, clipping by global norm and loss scaling included.

    Args:
        world_size: ranks that share the global batch, for `optimizer.scale_lr`.

    Raises:
        ConfigError: a target of the configuration is not an optimizer or a schedule, or takes neither learning rate nor clipping.
    """
    o, clip = config.optimizer, config.trainer.gradient_clip_val
    rate: Any = make_schedule(config, plan, world_size)
    if set_from_outside(config):
        rate = scaled_lr(o.lr, o.scale_lr, world_size)  # a number: callbacks can change it
    if isinstance(o, OtherOptimizer):
        optimizer = _other(o, rate, clip)
    elif o.name == "sgd":
        optimizer = SGD(
            decay=o.weight_decay,
            momentum=float(o.momentum),
            nesterov=o.nesterov,
            learning_rate=rate,
            global_clipnorm=clip,
        )
    else:
        optimizer = AdamW(
            beta_1=o.betas[0],
            beta_2=o.betas[1],
            epsilon=o.eps,
            weight_decay=o.weight_decay,
            learning_rate=rate,
            global_clipnorm=clip,
        )
    return (
        keras.optimizers.LossScaleOptimizer(optimizer)
        if config.trainer.precision == "16-mixed"
        else optimizer
    )


def make_schedule(
    config: Config, plan: Plan, world_size: int
) -> keras.optimizers.schedules.LearningRateSchedule:
    """The learning rate of each step, as a part of the step's graph. Raises ConfigError: the target is no schedule."""
    lr = scaled_lr(config.optimizer.lr, config.optimizer.scale_lr, world_size)
    schedule = config.schedule
    if not isinstance(schedule, OtherSchedule):
        return LearningRate(lr, schedule, plan.steps_per_epoch, plan.total_steps)
    length = plan.max_epochs if schedule.interval == "epoch" else plan.total_steps
    with refusals(f"schedule.{TARGET}={schedule.target['keras']}"):
        made = instantiate(schedule, "schedule", "keras", initial_learning_rate=lr, decay_steps=length)
    if not isinstance(made, keras.optimizers.schedules.LearningRateSchedule):
        raise ConfigError(
            f"schedule._target_={schedule.target['keras']} makes a {type(made).__name__}; Keras needs a "
            "keras.optimizers.schedules.LearningRateSchedule, such as keras.optimizers.schedules.ExponentialDecay."
        )
    return OncePerEpoch(made, plan.steps_per_epoch) if schedule.interval == "epoch" else made


def rate_of(
    optimizer: keras.optimizers.Optimizer, config: Config, plan: Plan, world_size: int
) -> Callable[[], float]:
    """Return a function that returns the learning rate of the optimizer's last step."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)

    def rate() -> float:
        used, step = inner._learning_rate, max(0, int(inner._iterations.numpy()) - 1)
        if isinstance(used, LearningRate):  # in double precision, as Lightning logs it
            return learning_rate(config, plan, step, world_size)
        scheduled = isinstance(used, keras.optimizers.schedules.LearningRateSchedule)
        return float(tf.convert_to_tensor(used(step) if scheduled else inner.learning_rate))

    return rate


def set_from_outside(config: Config) -> bool:
    """Return whether callbacks can set the learning rate, which is a variable then.

    Raises:
        ConfigError: a callback of Keras' sets it, and so does a schedule.
    """
    kinds = (keras.callbacks.LearningRateScheduler, keras.callbacks.ReduceLROnPlateau)
    made = {name: c.target["keras"] for name, c in config.callbacks.items() if "keras" in c.target}
    targets = {
        f"callbacks.{name}": locate(dotted, f"callbacks.{name}.{TARGET}") for name, dotted in made.items()
    }
    setters = [key for key, t in targets.items() if isinstance(t, type) and issubclass(t, kinds)]
    still = config.schedule.name == "constant" and not getattr(config.schedule, "warmup_epochs", 1)
    if setters and not still:
        raise ConfigError(
            f"{setters[0]} sets the learning rate, and so does schedule={config.schedule.name}; use schedule=constant "
            "schedule.warmup_epochs=0."
        )
    return still and bool(made)


CLIPS = ("global_clipnorm", "clipnorm", "clipvalue")
"""Arguments of Keras' optimizers that clip gradients."""


def unscheduled(config: Config) -> list[str]:
    """Return a line for an optimizer whose own learning_rate replaces this project's keys."""
    own = getattr(config.optimizer, "arguments", {}).get("learning_rate")
    if own is None:
        return []
    return [
        f"optimizer.learning_rate={own} is used as it is: optimizer.lr, optimizer.scale_lr and schedule={config.schedule.name} have no "
        "effect; optimizer.lr is the key that the schedule starts from."
    ]


def _other(o: OtherOptimizer, rate: Any, clip: float | None) -> keras.optimizers.Optimizer:
    """The target's optimizer; it gets `learning_rate`, and `global_clipnorm` where it is asked for."""
    dotted = o.target["keras"]
    if clip and (own := next((name for name in CLIPS if o.arguments.get(name) is not None), None)):
        raise ConfigError(
            f"optimizer.{own}={o.arguments[own]} and trainer.gradient_clip_val={clip} both clip the gradients, which is done once; leave "
            f"optimizer.{own} out, or use trainer.gradient_clip_val=null."
        )
    supplied = {"learning_rate": rate} | ({"global_clipnorm": clip} if clip else {})
    parameters = inspect.signature(locate(dotted, f"optimizer.{TARGET}")).parameters
    anything = any(p.kind == p.VAR_KEYWORD for p in parameters.values())
    untaken = [name for name in supplied if name not in parameters and name not in o.arguments]
    if untaken and not anything:
        key = {"learning_rate": "optimizer.lr", "global_clipnorm": "trainer.gradient_clip_val"}[untaken[0]]
        raise ConfigError(
            f"optimizer.{TARGET}={dotted} takes no {untaken[0]}, so {key} would have no effect."
        )
    section = replace(o, arguments={**{name: supplied[name] for name in untaken}, **o.arguments})
    with refusals(f"optimizer.{TARGET}={dotted}"):
        made = instantiate(section, "optimizer", "keras", **supplied)
    if not isinstance(made, keras.optimizers.Optimizer):
        raise ConfigError(
            f"optimizer.{TARGET}={dotted} makes a {type(made).__name__}, which is no keras.optimizers.Optimizer."
        )
    return made
