"""The work between training steps: metrics, requests to stop or to save, checkpoints."""

import math
import time
from collections import UserDict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any

import keras
import numpy as np

from train_anywhere.config.checks.monitors import from_keras_name
from train_anywhere.config.schema import Config
from train_anywhere.errors import RanksDifferError
from train_anywhere.features.feature import Observers, Step
from train_anywhere.training.early_stopping import Timer, describe_early_end
from train_anywhere.training.keras.batches import Loader
from train_anywhere.training.keras.checkpoint import Position, StateWriter
from train_anywhere.training.keras.dropin.gradients import read_flags, set_flags, trainable_parts
from train_anywhere.training.keras.dropin.user_callbacks import CallbackStates
from train_anywhere.training.keras.loop.tensorboard import MetricsWriter
from train_anywhere.training.keras.module import Module
from train_anywhere.training.plan import Plan
from train_anywhere.training.stop import Stop

HOOKS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
"""Hooks of Keras callbacks that may change which layers are trainable between two steps."""


def has_batch_hooks(callbacks: Iterable[keras.callbacks.Callback]) -> bool:
    """Return whether a callback overrides one of `HOOKS`."""
    base = keras.callbacks.Callback
    hooks = ((getattr(c, name), getattr(base, name)) for c in callbacks for name in HOOKS)
    return any(getattr(hook, "__func__", hook) is not original for hook, original in hooks)


class BatchLogs(UserDict[str, float]):
    """The metrics up to a batch, read from the device only if a callback uses them."""

    def __init__(self, module: Module, split: str) -> None:
        self._module, self._split = module, split

    @cached_property
    def data(self) -> dict[str, float]:  # type: ignore[override]
        """The metrics by their Keras names."""
        return to_keras_names(self._module.report_batch(self._split), self._split)


def to_keras_names(metrics: Mapping[str, float], split: str = "") -> dict[str, Any]:
    """Rename metrics for Keras callbacks: train/loss becomes loss, val/loss val_loss."""
    named = {}
    for name, value in metrics.items():
        prefix, _, rest = name.partition("/")
        if rest:
            named[f"val_{rest}" if prefix == "val" and not split else rest] = value
    return named


def from_keras_names(logs: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers in the logs of an epoch: val_loss becomes val/loss, norm train/norm."""
    numbers = {}
    for name, value in logs.items():
        with suppress(TypeError, ValueError):  # a callback may keep anything in the logs
            numbers[from_keras_name(name)] = float(value)
    return numbers


class TrainingCallback:
    """The work between training steps, and its order.

    Reading the metrics waits for the device and, with several ranks, is a collective. So they are read every `log_every_n_steps` steps and
    at the end of an epoch, together with requests of any rank to stop and of rank 0 to save.

    Args:
        checkpoints: writes checkpoints, on rank 0; None on other ranks.
        observers: called after steps, validations and checkpoints.
        restored: content of state.json in the checkpoint that the run resumes from.

    Attributes:
        added: metrics that callbacks added to the logs of the last epoch.
        ended_by: a line about the end, if user code ended training before its last step.
        stopper: class of the callback that has set `stop_training`; None if it is not known.
        has_batch_hooks: whether a callback that all ranks have is called at every step.
    """

    def __init__(
        self,
        config: Config,
        plan: Plan,
        position: Position,
        module: Module,
        loader: Loader,
        metrics: MetricsWriter,
        checkpoints: StateWriter | None,
        stop: Stop,
        user_callbacks: keras.callbacks.CallbackList,
        states: CallbackStates,
        observers: Observers,
        restored: dict[str, Any] | None,
    ) -> None:
        self.config, self.plan, self.position = config, plan, position
        self.module, self.loader, self.user_callbacks, self.states = module, loader, user_callbacks, states
        self.metrics, self.checkpoints, self.stop = metrics, checkpoints, stop
        self.heartbeat = metrics.progress.heartbeat
        self.timer = Timer(config.trainer, position.seconds)
        self.observers, self.restored = observers, restored
        self.save_requested = False
        self.batch_logs: Mapping[str, float] = {}
        self.epoch_logs: dict[str, float] = {}
        self.added: dict[str, float] = {}
        self.stopper: str | None = None
        self.ended_by: str | None = None
        self.has_batch_hooks = has_batch_hooks(states.callbacks.values())

    def on_train_begin(self) -> None:
        """Call the callbacks. In a resumed run, restore their state and what they changed."""
        variables = [*self.module.weights().values(), *self.module.optimizer_state().values()]
        changing = variables if self.restored and self.states.callbacks else []
        # on each device: their dropout seeds differ
        copies = [copy for variable in changing for copy in self.module.strategy.local_values(variable)]
        before = [np.array(copy) for copy in copies]
        self.user_callbacks.on_train_begin()
        for copy, value in zip(copies, before, strict=True):
            copy.assign(value)
        for line in self.states.unsaved_notes():
            self.metrics.progress.note(line)
        if self.restored:
            set_flags(self.module.model, self.restored["flags"])
            self.states.restore(self.restored["callbacks"], self.module.strategy)

    def on_train_batch_end(self) -> None:
        """Process the end of a training step."""
        position = self.position
        if self.checkpoints:
            self.checkpoints.checkpointer.check()
        position.advance(self.plan, self.config.trainer)
        if self.module.strategy.processes == 1:
            self._end_training(self.timer.is_over)
        metrics = None
        if position.pending or position.step % self.config.trainer.log_every_n_steps == 0:
            metrics = self._measure()
            if not position.pending:  # else `end_epoch` writes the row, together with the validation
                self.metrics.write(position.step, position.epoch, metrics)
            at = (position.step, position.epoch, position.batch)
            self.observers.after_step(Step(*at, metrics, last=position.pending))
        self.batch_logs = BatchLogs(self.module, "train")
        loss = lambda: float(self.batch_logs.get("loss", math.nan))  # noqa: E731  # of this process
        self.metrics.progress.add_batches(
            position.epoch, position.batch - 1, metrics, self.plan.accumulate, loss
        )
        self.check_stop_flag()
        if (profile := self.metrics.progress.profile) and profile.is_on:
            profile.after_step(position.step)
        if self.is_due() and not (position.pending or position.preempted):
            self.save()

    def is_due(self) -> bool:
        """Return whether a checkpoint is due after the newest step."""
        return self.save_requested or self.observers.due(self.position.step)

    def on_test_batch_end(self, batch: int) -> None:
        """Report progress, and check for a signal, which may interrupt a validation or a test too."""
        self.heartbeat.evaluated_batch()
        self.check_stop_flag()

    def reduce(self, split: str) -> dict[str, float]:
        """Return the metrics over all ranks, and agree to stop or save. All ranks call this."""
        requests = [
            float(self.stop.requested is not None),
            float(self._requests_checkpoint()),
            float(self.metrics.progress.take_profile()),
            float(bool(self.module.model.stop_training)),
            float(self.timer.is_over),
            *self.heartbeat.efficiency.numbers(),
        ]
        reduced = self.module.strategy.sum([*self.module.take(), *requests])
        *sums, to_stop, to_save, to_profile, to_end, over, whole, waited = reduced
        self.metrics.progress.request_profile(int(to_profile))
        self.heartbeat.efficiency.set_sums([whole, waited])
        self.position.preempted |= to_stop > 0
        self.save_requested = to_save > 0
        if to_end > 0:
            self._end_early(split == "train")
        self._end_training(over > 0)
        return self.module.report(split, sums)

    def check_stop_flag(self) -> None:
        """Check for requests to stop or save in a single process, which needs no agreement of ranks."""
        if self.module.strategy.processes == 1:
            self.position.preempted |= self.stop.requested is not None
            self.save_requested = self._requests_checkpoint()
            self.metrics.progress.request_profile(self.metrics.progress.take_profile())

    def _requests_checkpoint(self) -> bool:
        """Return whether rank 0 wants to save now, as a feature or `jobs.py save` requests."""
        requested = bool(self.metrics.progress.requests.save) or self.observers.requests_checkpoint()
        return self.checkpoints is not None and requested

    def _end_training(self, over: bool) -> None:
        """End training at this step if `trainer.max_time` is over."""
        position = self.position
        if over and not (position.timed_out or position.step >= self.plan.total_steps):
            position.timed_out = position.pending = True
            self.metrics.progress.note(self.timer.end(position.step))

    def check_stop_training(self, agree: bool = False) -> None:
        """Check whether a callback has set `stop_training`. With `agree` all processes call this."""
        requested = float(bool(self.module.model.stop_training))
        if agree and self.module.strategy.processes > 1 and self.states.callbacks:
            requested = self.module.strategy.sum([requested])[0]
        if requested and (agree or self.module.strategy.processes == 1):
            self._end_early(not agree)

    def _end_early(self, at_step: bool) -> None:
        """End training after `stop_training`. At a step, a validation ends the epoch as in `fit`."""
        position = self.position
        if position.ended:
            return
        position.ended = True
        if position.step < self.plan.total_steps:
            self.ended_by = describe_early_end(self.stopper, position.step, self.plan.total_steps)
            self.metrics.progress.note(self.ended_by)
        if at_step and not position.pending:
            position.pending = True
            if position.step % self.config.trainer.log_every_n_steps:
                self._measure()

    def call_epoch_end(self, epoch: int, metrics: Mapping[str, float], closes: bool) -> dict[str, float]:
        """Call the callbacks if an epoch ends, and return the metrics that they add to its logs."""
        self.epoch_logs, self.added = to_keras_names(metrics), {}
        if closes:
            logs = dict(self.epoch_logs)
            self.call_each("on_epoch_end", epoch, logs)
            known = {*self.epoch_logs, "learning_rate"}  # Keras adds that one; it is logged as lr
            self.added = from_keras_names({k: v for k, v in logs.items() if k not in known})
        return self.added

    def call_each(self, hook: str, number: int, logs: Mapping[str, Any]) -> None:
        """Call a hook of each callback. That of CallbackList would copy or read the logs."""
        for one in self.user_callbacks.callbacks:
            getattr(one, hook)(number, logs)
            if self.stopper is None and self.module.model.stop_training:
                self.stopper = type(one).__name__

    def _measure(self) -> dict[str, float]:
        """Return and store the metrics of training over all ranks, and the learning rate."""
        metrics = self.reduce("train") | {"lr": self.module.learning_rate()}
        self.position.metrics |= metrics
        return metrics

    def update_trainable(self) -> None:
        """Train the layers that are trainable now, the same on all ranks. All processes call this."""
        refuse_different_layers(self.module)
        self.module.update_trainable()

    def average_statistics(self) -> None:
        """Average the moving statistics. They are linear in the batches, so this may be late."""
        self.module.strategy.average_variables(self.module.moving_statistics())

    def save(self, value: float | None = None) -> None:
        """Save a checkpoint, with the value of `checkpoint.monitor` if it was just measured."""
        self.average_statistics()
        self.save_requested, self.position.seconds = False, self.timer.seconds
        metric_state = self.module.metric_state()
        with self.heartbeat.within("checkpoint"):
            start = time.monotonic()
            if self.checkpoints:
                self.checkpoints.save(self.module, self.position, metric_state, self.states.save(), value)
            self.observers.after_checkpoint(time.monotonic() - start)
            self.metrics.progress.requests.saved(self.position.step)


def refuse_different_layers(module: Module) -> None:
    """Raise RanksDifferError if ranks train different layers. All processes call this."""
    count = module.strategy.processes
    if count == 1:
        return
    agreed = module.strategy.sum([float(flag) for flag in read_flags(module.model)])
    names = (part.name for part in trainable_parts(module.model))
    if different := [
        f"{name} on {ranks:.0f}" for name, ranks in zip(names, agreed, strict=True) if 0 < ranks < count
    ]:
        raise RanksDifferError(
            f"the {count} ranks train different layers ({', '.join(different[:3])} of them): a callback sets `trainable` on some ranks "
            "only; let it do so on all of them."
        )
