"""The progress of a run: epoch, step, newest metrics, early stopping and seeds."""

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from train_anywhere.config.schema import EarlyStopping, Trainer
from train_anywhere.training.early_stopping import Patience
from train_anywhere.training.keras.module import Module
from train_anywhere.training.plan import Plan, validation_due


@dataclass
class Position:
    """The progress of a run, updated while it trains.

    Attributes:
        epoch: epoch of the next batch, from 0.
        batch: number of the next batch in its epoch, from 0.
        step: optimizer steps done.
        metrics: the newest value of each metric.
        pending: the end of the epoch, or a validation within it, is still to be run.
        patience: state of early stopping.
        ended: a callback has set `stop_training`: the run is complete.
        preempted: a signal requested a stop.
        seconds: time of training of the run, when it was saved.
        timed_out: `trainer.max_time` is over: the run is complete.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    pending: bool = False
    patience: Patience = field(default_factory=Patience)
    ended: bool = False
    preempted: bool = False
    seconds: float = 0.0
    timed_out: bool = False

    def numbers(self) -> list[float]:
        """Return the values that all ranks must share; `from_numbers` reverses this."""
        best = math.nan if self.patience.best is None else self.patience.best
        waited, seconds = self.patience.waited, self.seconds
        return [self.epoch, self.batch, self.step, self.pending, best, waited, self.ended, seconds]

    @classmethod
    def from_numbers(cls, numbers: list[float], metrics: dict[str, float]) -> "Position":
        """Return the position whose `numbers` these are, with the given metrics."""
        epoch, batch, step, pending, best, waited, ended, seconds = numbers
        patience = Patience(None if math.isnan(best) else best, int(waited))
        position = cls(int(epoch), int(batch), int(step), metrics, bool(pending), patience, bool(ended))
        position.seconds = seconds
        return position

    def advance(self, plan: Plan, trainer: Trainer, steps: int = 1) -> None:
        """Count optimizer steps of an epoch as done; `max_steps` may end the last epoch early."""
        self.step += steps
        self.batch += steps * plan.accumulate
        self.pending = self.ends_epoch(plan) or validation_due(
            trainer, plan, self.epoch, self.batch, self.step
        )

    @property
    def last_epoch(self) -> int:
        """The epoch of the last batch, from 0."""
        return self.epoch if self.batch else max(0, self.epoch - 1)

    @property
    def leaves(self) -> bool:
        """Whether training leaves the epoch after this step: because of a signal, a callback or the time."""
        return self.preempted or self.ended or self.timed_out

    def ends_epoch(self, plan: Plan) -> bool:
        """Return whether no step is left in the epoch or the run."""
        return self.batch >= plan.train_batches or self.step >= plan.total_steps or self.timed_out

    def close_epoch(self, plan: Plan) -> None:
        """Move to the next epoch, after the work at the end of this one is done."""
        self.pending = False
        if self.batch >= plan.train_batches:
            self.epoch, self.batch = self.epoch + 1, 0

    def is_complete(self, plan: Plan, rule: EarlyStopping) -> bool:
        """Return whether training is complete: by its length or time, by early stopping or by a callback."""
        done = (
            self.ended or self.timed_out or self.patience.should_stop(rule) or self.step >= plan.total_steps
        )
        return done and not self.pending


def seed_everything(seed: int) -> None:
    """Seed Python, numpy and TensorFlow.

    tf.config.experimental.enable_op_determinism() stays off: results on a CPU are reproducible bit for bit without it, and it would
    serialize the threads that read data. Enable it for exact reproducibility on GPUs.
    """
    keras.utils.set_random_seed(seed)


def disable_graph_optimizer() -> None:
    """Turn off TensorFlow's graph optimizer (Grappler) on CPUs, so that steps that return logs are reproducible bit for bit.

    Measured with TensorFlow 2.21 and a ResNet-50 in batches of 8, with two threads for operations: with the optimizer, runs ended with
    different weights, also under enable_op_determinism(); without it, all were equal and a step took as long. On GPUs it stays on.
    """
    if not tf.config.get_visible_devices("GPU"):
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


@contextmanager
def keep_random_state(module: Module) -> Iterator[None]:
    """Restore the random states of Python, numpy, TensorFlow and the model after the block."""
    states = [v for v in module.model.variables if v.name == "seed_generator_state"]
    copies = [copy for state in states for copy in module.strategy.local_values(state)]
    before = [copy.numpy() for copy in copies]
    seeds = getattr(context.context(), "_rng", None)  # of operations without a seed
    python, own, drawn = random.getstate(), np.random.get_state(), seeds.getstate() if seeds else None
    yield
    for copy, value in zip(copies, before, strict=True):
        copy.assign(value)
    random.setstate(python)
    np.random.set_state(own)
    if seeds:
        seeds.setstate(drawn)


def split_seeds(module: Module) -> None:
    """Give each device different dropout seeds, after all received those of rank 0."""
    strategy = module.strategy
    for seed in (v for v in module.model.variables if v.name == "seed_generator_state"):
        local = strategy.local_values(seed)
        for number, value in enumerate(local):
            value.assign_add(tf.constant([strategy.rank * len(local) + number, 0], value.dtype))
