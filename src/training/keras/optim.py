"""Optimizers and the learning rate's schedule as Keras objects."""

import math

import keras
import tensorflow as tf

from src.config.choices import Optimizer, Schedule
from src.config.schema import Config
from src.training.plan import Plan
from src.training.schedules import scaled_lr, warmup_steps


class LearningRate(keras.optimizers.schedules.LearningRateSchedule):
    """`lr` times `src.training.schedules.factor` in TensorFlow's operations: part of the step's graph.

    Args:
        lr: the highest learning rate.
        schedule: the schedule's configuration.
        steps_per_epoch, total_steps: of the plan.
    """

    def __init__(self, lr: float, schedule: Schedule, steps_per_epoch: int, total_steps: int) -> None:
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


class SGD(keras.optimizers.SGD):
    """Keras' SGD with PyTorch's arithmetic: decay is added to the gradient, momentum gathers gradients.

    g = gradient + decay * w;  m = momentum * m + g;  w -= lr * (g + momentum * m if nesterov else m).
    Keras' own decays past the momentum and gathers lr * g, which differs once the learning rate changes.
    """

    def __init__(self, decay: float = 0.0, **options: object) -> None:
        super().__init__(**options)
        self.decay = decay

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        """Update one variable; all three have its dtype, gradient and variable its shape."""
        step = gradient + self.decay * variable if self.decay else gradient
        if self.momentum:
            gathered = self.momentums[self._get_variable_index(variable)]
            self.assign(gathered, self.momentum * gathered + step)
            step = step + self.momentum * gathered if self.nesterov else gathered
        self.assign_sub(variable, tf.cast(learning_rate, variable.dtype) * step)


def make_optimizer(config: Config, plan: Plan, world_size: int) -> keras.optimizers.Optimizer:
    """The optimizer of the configuration: schedule, clipping by global norm and loss scaling included.

    Args:
        world_size: ranks that share the global batch, for `optimizer.scale_lr`.
    """
    o = config.optimizer
    lr = scaled_lr(o.lr, o.scale_lr, world_size)
    rate = LearningRate(lr, config.schedule, plan.steps_per_epoch, plan.total_steps)
    optimizer = _plain(o, learning_rate=rate, global_clipnorm=config.trainer.gradient_clip_val)
    if config.trainer.precision == "16-mixed":
        return keras.optimizers.LossScaleOptimizer(optimizer)
    return optimizer


def _plain(o: Optimizer, **shared: object) -> keras.optimizers.Optimizer:
    if o.name == "sgd":
        return SGD(decay=o.weight_decay, momentum=float(o.momentum), nesterov=o.nesterov, **shared)
    first, second = o.betas
    return keras.optimizers.AdamW(
        beta_1=first, beta_2=second, epsilon=o.eps, weight_decay=o.weight_decay, **shared
    )
