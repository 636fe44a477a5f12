"""The callbacks of a run's one call of `keras.Model.fit`: the user's, then the work of the run.

In a process that resumes, `fit` starts at the first batch of an epoch. Until the saved position, the model's train function only reads
batches, or nothing if they are read by index, and no callback is called. So `fit` uses iterators, shuffles and the hooks of a PyDataset as
in a run that never stopped. A stop is an exception, so `on_train_end` is called once in a run.

This relies on behavior of Keras that is not documented: `fit` looks up `train_function` in each call, keeps a given CallbackList,
reads `validation_freq` after each epoch, and returns the dict of logs that the last hook of a validation got.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import keras
import numpy as np

from train_anywhere.config.checks.monitors import from_keras_name
from train_anywhere.config.schema import Config
from train_anywhere.errors import DataError, RanksDifferError
from train_anywhere.features.feature import Observers, Step
from train_anywhere.job.rank_process import Stop
from train_anywhere.training.early_stopping import (
    Timer,
    checkpoint_score,
    describe_early_end,
    monitored_value,
)
from train_anywhere.training.keras.batches import Loader
from train_anywhere.training.keras.checkpoint import Position, StateWriter
from train_anywhere.training.keras.dropin.gradients import set_flags
from train_anywhere.training.keras.dropin.user_callbacks import CallbackStates
from train_anywhere.training.keras.loop.tensorboard import MetricsWriter
from train_anywhere.training.keras.module import Module, to_numbers
from train_anywhere.training.plan import Plan, is_multiple, validation_due

WHEN = ("begin", "end")


class Stopped(Exception):
    """Leaves `fit` or `evaluate` after a signal."""


def overrides(callbacks: Iterable[keras.callbacks.Callback], *hooks: str) -> bool:
    """Return whether a callback has one of these hooks."""
    base = keras.callbacks.Callback
    pairs = ((getattr(c, name), getattr(base, name)) for c in callbacks for name in hooks)
    return any(getattr(hook, "__func__", hook) is not original for hook, original in pairs)


def to_keras_names(metrics: Mapping[str, float], prefixes: Mapping[str, str]) -> dict[str, float]:
    """Rename the metrics of some splits for Keras callbacks: with {"val": "val_"} val/loss becomes val_loss."""
    parts = ((name.partition("/"), value) for name, value in metrics.items())
    return {prefixes[split] + name: value for (split, _, name), value in parts if name and split in prefixes}


def from_keras_names(logs: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers in the logs of an epoch: val_loss becomes val/loss, norm train/norm."""
    numbers = {}
    for name, value in logs.items():
        with suppress(TypeError, ValueError):  # a callback may keep anything in the logs
            numbers[from_keras_name(name)] = float(value)
    return numbers


def refuse_different_layers(module: Module) -> None:
    """Raise RanksDifferError if ranks train different variables. All processes call this."""
    count, trained = module.strategy.processes, {id(v) for v in module.model.trainable_variables}
    agreed = module.strategy.sum([float(id(v) in trained) for v in module.model.variables])
    pairs = zip(module.model.variables, agreed, strict=True)
    if different := [f"{v.path} on {ranks:.0f}" for v, ranks in pairs if 0 < ranks < count]:
        raise RanksDifferError(
            f"the {count} ranks train different layers ({', '.join(different[:3])} of them): a callback sets `trainable` on some ranks "
            "only; let it do so on all of them."
        )


class TrainingCallback(keras.callbacks.CallbackList):
    """The callbacks of one call of `fit`, and the work between steps.

    Reading the metrics waits for the device and, with several ranks, is a collective. So they are read every `log_every_n_steps` steps and
    at the end of an epoch, together with requests of any rank to stop and of rank 0 to save.

    Args:
        checkpoints: writes checkpoints, on rank 0; None on other ranks.
        users: the callbacks of the configuration, with a History.
        observers: called after steps, validations and checkpoints.
        restored: content of state.json in the checkpoint that the run resumes from.

    Attributes:
        added: metrics that callbacks added to the logs of the last epoch.
        ended_by: a line about the end, if user code ended training before its last step.
        validations: the epochs that `fit` validates, from 1: the current one, or none.
        replaying: whether `fit` has not reached the position of the checkpoint yet.
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
        users: list[keras.callbacks.Callback],
        states: CallbackStates,
        observers: Observers,
        restored: dict[str, Any] | None,
    ) -> None:
        options = {"verbose": 0, "epochs": plan.max_epochs, "steps": plan.steps_per_epoch}
        super().__init__(users, add_history=False, add_progbar=False, model=module.model, **options)
        self.config, self.plan, self.position = config, plan, position
        self.module, self.loader, self.states = module, loader, states
        self.metrics, self.checkpoints, self.stop = metrics, checkpoints, stop
        self.heartbeat, self.pace = metrics.progress.heartbeat, module.strategy.pace
        self.timer = Timer(config.trainer, position.seconds)
        self.observers, self.restored = observers, restored
        self.save_requested = self.end_requested = False
        self.added: dict[str, float] = {}
        self.stopper: str | None = None
        self.ended_by: str | None = None
        self.validations: list[int] = []
        self.train_hooks = overrides(
            users, *(f"on_{of}_{when}" for of in ("train_batch", "batch") for when in WHEN)
        )
        self.test_hooks = overrides(
            users, *(f"on_{of}_{when}" for of in ("test", "test_batch") for when in WHEN)
        )
        self.split = "val"
        self.load: Callable[[], object] = module.swap_averages
        self.epoch = self.first_epoch = 0
        self.replaying = False
        self._functions: tuple[Any, Any] = None, None
        self._counted = module.copy_metrics()
        self._first = 0
        self._counted_rows = 0, position.step
        self._measured = self._skipped = self._logged = self._leaving = self._averaged = False
        self._before: list[tuple[Any, np.ndarray]] = []
        self._states_before: dict[str, str] = {}

    @property
    def has_users(self) -> bool:
        """Whether all ranks have a callback of the user."""
        return any(not isinstance(one, keras.callbacks.History) for one in self.states.callbacks.values())

    def prepare(self) -> None:
        """Choose the epoch at which `fit` starts: the first one if what the user's data yields depends on what was read before."""
        again = any(self.loader.is_read_again(split) for split in ("train", "val"))
        self.first_epoch = 0 if again and not self.is_complete() else self.position.epoch
        at = self.position.epoch, self.position.batch
        self.replaying = not self.is_complete() and (self.first_epoch, 0) < at

    def is_complete(self) -> bool:
        """Return whether training is complete."""
        return self.position.is_complete(self.plan, self.config.trainer.early_stopping)

    def evaluate(self) -> None:
        """Validate now, within an epoch or after training."""
        arguments = self.module.evaluation(self.loader, "val", self.plan.val_batches)
        self.model.evaluate(**arguments, callbacks=self, verbose=0)

    # ---- before the position

    def _skip(self, iterator: Iterator[Any]) -> Any:
        """Read the batches of a call that was made before the position, and train those after it."""
        size = self.model.steps_per_execution
        last = self._first + size >= self.plan.steps_per_epoch
        known = self.epoch < self.position.epoch
        left = self.position.batch // self.plan.accumulate - self._first
        if self.loader.is_read_again("train"):
            for _ in itertools.islice(iterator, size if known or last else min(size, left)):
                pass
        if known or (size < left and not last):
            self._skipped = True
            return {}
        self._resume()
        rest = [] if last else list(itertools.islice(iterator, size - left))
        self._skipped = not rest
        return self.model.train_function(iter(rest)) if rest else {}

    def _resume(self) -> None:
        """Train from here on: `fit` has reached the position."""
        self.replaying = False
        self.model.train_function, self.model.test_function = self._functions
        self.module.assign_metrics(self._counted)

    def _skip_test(self, iterator: Iterator[Any]) -> Any:
        """Read the batches of a call of an earlier validation, if later ones depend on them."""
        if self.loader.is_read_again("val"):
            for _ in itertools.islice(iterator, self.model.steps_per_execution):
                pass
        else:
            self.model.stop_evaluating = True
        return {}

    def _call(self, hook: str, number: int, logs: Any = None) -> None:
        """Call a hook of each callback, and note the one that sets `stop_training`."""
        for one in self.callbacks:
            getattr(one, hook)(number, logs)
            if self.stopper is None and self.model.stop_training:
                self.stopper = type(one).__name__

    # ---- hooks of training

    def on_train_begin(self, logs: Any = None) -> None:
        """Call the user's callbacks. In a resumed run, restore their state and what they changed."""
        variables = [*self.module.weights().values(), *self.module.optimizer_state().values()]
        changing = variables if self.restored and self.has_users else []
        # on each device: their dropout seeds differ
        copies = [copy for variable in changing for copy in self.module.strategy.local_values(variable)]
        before = [np.array(copy) for copy in copies]
        super().on_train_begin(logs)
        for copy, value in zip(copies, before, strict=True):
            copy.assign(value)
        if self.restored:
            set_flags(self.model, self.restored["flags"])
            self.module.saved_flags = self.restored["traced"] or None
            self.states.restore(self.restored["callbacks"], self.module.strategy)
        self._functions = self.model.train_function, self.model.test_function
        if self.replaying:
            self.model.train_function, self.model.test_function = self._skip, self._skip_test
        self.observers.start(self.position.step)
        self.heartbeat.enter("step", "data")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Start an epoch."""
        self.epoch, self._measured, self._leaving, self._logged = epoch, False, False, False
        if not self.replaying:
            self.module.start_count()
            self._call("on_epoch_begin", epoch, {})
        refuse_different_layers(self.module)
        self.pace.start()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Note the number of the call's first batch."""
        self._first = batch
        at = self.position.batch // self.plan.accumulate
        ahead = self.epoch < self.position.epoch or batch + self.model.steps_per_execution <= at
        if self.train_hooks and not (self.replaying and ahead):
            self._call("on_train_batch_begin", batch, {})
        if not (self.replaying and ahead):
            self.module.set_traced_flags()
        self.pace.ask()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Process the end of a call of the train function."""
        skipped, self._skipped = self._skipped, False
        if self.replaying:
            self._read_validation(batch + 1)
            return
        if not skipped:
            self.heartbeat.computed(self.pace.seconds(self.heartbeat))
            self.module.set_own_flags()
            self.module.logs, self._logged = logs, True
            if self.train_hooks:
                self._call("on_train_batch_end", batch, self.module.batch_logs())
            done = min(batch + 1, self.plan.steps_per_epoch)
            self._end_step(done - self.position.batch // self.plan.accumulate)
        if self.position.preempted:
            self.leave()
        if self.position.pending:
            self._end_interval()
        if self.position.pending and (self.position.leaves or self.position.step >= self.plan.total_steps):
            self.model.stop_training = self._leaving = True
        self.pace.start()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Process the end of an epoch, with its validation."""
        position = self.position
        if self.replaying:
            if position.batch == 0 and epoch + 1 == position.epoch:
                self._resume()
            return
        if not position.pending:
            raise DataError(
                f"the training data ended after {position.batch} of {self.plan.train_batches} batches of an epoch; use "
                f"trainer.limit_train_batches={max(1, position.batch)}, or data that says how many batches it has."
            )
        validated = self._measured or bool(self.validations)
        metrics = self._metrics(validated)
        if not self._measured:
            self._count_patience(epoch, metrics, validated)
        numbers = to_numbers(logs)
        if self.module.several or not self._logged:
            numbers = to_keras_names(metrics, {"train": "", "val": "val_"})
        elif self._measured:
            numbers |= to_keras_names(metrics, {"val": "val_"})
        known = {*numbers, "learning_rate"}  # Keras adds that one; it is logged as lr
        if self._leaving:
            self.model.stop_training = position.ended
        self._call("on_epoch_end", epoch, numbers)
        self.added = from_keras_names({k: v for k, v in numbers.items() if k not in known})
        self._report_epoch(epoch, metrics | self.added)
        self._agree_on_end()
        if is_multiple(epoch + 1, self.config.monitor.compare_weights_every_n_epochs):
            self.module.refuse_different_weights()
        self._close(epoch, metrics | self.added, validated)
        self.model.stop_training = self.is_complete()

    def on_train_end(self, logs: Any = None) -> None:
        """Call the callbacks; validate and save weights that they change."""
        self.timer.stop()
        weights, strategy = self.module.weights(), self.module.strategy
        before = {n: np.array(v) for n, v in weights.items()} if self.has_users else {}
        super().on_train_end(logs)
        if not before:
            return
        now = {name: np.array(v) for name, v in self.module.weights().items()}
        if {n: a.shape for n, a in now.items()} != {n: a.shape for n, a in before.items()}:
            self.metrics.progress.note(
                "callbacks added or removed weights of the model in on_train_end: checkpoint, test and export use the model before that."
            )
            self.module.keep_weights(weights)
            return
        changed = any(array.tobytes() != before[name].tobytes() for name, array in now.items())
        if any(strategy.sum([float(changed)])):
            self._save_changed(weights, before)

    # ---- hooks of evaluation

    def on_test_begin(self, logs: Any = None) -> None:
        """Keep the state of a validation, which runs again if it is interrupted, and use the weights to measure."""
        if self.replaying:
            return
        self._keep_state()
        self._average_statistics()
        self.module.start_count()
        self.heartbeat.enter("validation" if self.split == "val" else self.split)
        super().on_test_begin(logs)
        self._averaged = bool(self.load())

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Call the callbacks."""
        if self.test_hooks and not self.replaying:
            self._call("on_test_batch_begin", batch, {})

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Report progress, and check for a signal, which may interrupt a validation or a test too."""
        if self.replaying:
            return
        self.module.logs = logs
        if self.test_hooks:
            self._call("on_test_batch_end", batch, self.module.batch_logs())
        self.heartbeat.evaluated_batch()
        self.check_stop_flag()
        self._leave_test()

    def on_test_end(self, logs: Any = None) -> None:
        """Give the callbacks, and `fit`, the results over all ranks."""
        if self.replaying:
            return
        if not self.module.several:
            self.module.logs = logs
        metrics = self.reduce(self.split)
        self._leave_test()
        if self.split == "val" and self.checkpoints and (self._averaged or self.has_users):
            self.checkpoints.keep_validated(self.module, self.position)
        if self.load == self.module.swap_averages:
            self.module.swap_averages()
        self.position.metrics |= metrics
        if self.module.several:
            logs.clear()
            logs.update(to_keras_names(metrics, {self.split: ""}))
        test = self.split == "test"
        self.heartbeat.enter("checkpoint" if test else "step", "" if test else "data")
        super().on_test_end(logs)

    # ---- steps

    def _end_step(self, steps: int) -> None:
        """Count steps, report metrics, and save if a checkpoint is due."""
        position, before, every = self.position, self.position.step, self.config.trainer.log_every_n_steps
        if self.checkpoints:
            self.checkpoints.checkpointer.check()
        position.advance(self.plan, self.config.trainer, steps)
        single = self.module.strategy.processes == 1
        if single:
            self._end_training(self.timer.is_over)
        self._take_stop()
        if single and self.end_requested:
            self._end_early(True)
        metrics = None
        if position.pending or position.step // every > before // every:
            metrics = self._measure()
            if not position.pending:  # else the end of the epoch writes the row, together with the validation
                self.metrics.write(position.step, position.epoch, metrics)
            at = (position.step, position.epoch, position.batch)
            self.observers.after_step(Step(*at, metrics, last=position.pending))
        if metrics is not None:
            self._count_rows(position.step)
        loss = lambda: float(self.module.batch_logs().get("loss", math.nan))  # noqa: E731  # of this process
        self.metrics.progress.add_batches(
            position.epoch, position.batch - 1, metrics, steps * self.plan.accumulate, loss
        )
        self.check_stop_flag()
        self.save_requested |= self.observers.reach(position.step)
        if (profile := self.metrics.progress.profile) and profile.is_on:
            profile.after_step(position.step)
        if self.save_requested and not (position.pending or position.preempted):
            self.save()
        self.heartbeat.trained_batch(position.step)

    def _count_rows(self, step: int) -> None:
        """Use the rows that were trained since the last call for the training speed, if the data has its own batches."""
        rows, at = self.module.rows, (self.module.rows, step)
        (before, since), self._counted_rows = self._counted_rows, at
        if self.loader.is_read_again("train") and rows > before:
            throughput, batches = self.metrics.progress.throughput, (step - since) * self.plan.accumulate
            throughput.rows = (rows - before) / batches * self.metrics.progress.units_per_row

    def _end_interval(self) -> None:
        """Validate within an epoch, or choose whether `fit` validates at its end."""
        position, plan, trainer = self.position, self.plan, self.config.trainer
        epoch = position.epoch
        due = validation_due(trainer, plan, epoch, position.batch, position.step)
        listed = is_multiple(epoch + 1, trainer.check_val_every_n_epoch or 1)  # as `validation_freq` of `fit`
        ends = position.timed_out or (position.ended and listed)
        validates = due or bool(ends and plan.val_batches)
        if position.ended or position.ends_epoch(plan):
            self.validations[:] = [epoch + 1] if validates else []
            return
        counted = self.module.copy_metrics()
        self.evaluate()
        self.module.assign_metrics(counted)
        self._take_stop()
        if self.end_requested and self.module.strategy.processes == 1:
            self._end_early(False)
        metrics = self._metrics(True)
        self._count_patience(epoch, metrics, True)
        self._measured = True
        if position.timed_out or position.ended or position.patience.should_stop(trainer.early_stopping):
            self.validations.clear()  # `fit` ends the epoch here
            self.model.stop_training = self._leaving = True
            return
        self._report_epoch(epoch, metrics)
        self._close(epoch, metrics, False)
        self._measured = False

    def _read_validation(self, step: int) -> None:
        """Read the batches of a validation within an epoch before the position, if their order depends on it."""
        done, plan = step * self.plan.accumulate, self.plan
        number = self.epoch * plan.steps_per_epoch + step
        due = validation_due(self.config.trainer, plan, self.epoch, done, number)
        if not self.loader.is_read_again("val"):
            return
        if done >= plan.train_batches:
            self.validations[:] = [self.epoch + 1] if due else []
        elif due:
            self.evaluate()

    def _metrics(self, validated: bool) -> dict[str, float]:
        """Return the metrics of an epoch, or of the steps before a validation."""
        splits = ("train", "val") if validated else ("train",)
        metrics = self.position.metrics
        return {k: v for k, v in metrics.items() if k == "lr" or k.partition("/")[0] in splits}

    def _count_patience(self, epoch: int, metrics: Mapping[str, float], validated: bool) -> None:
        position, trainer = self.position, self.config.trainer
        within = not (position.ended or position.ends_epoch(self.plan))
        rule = trainer.early_stopping
        if (validated or not self.plan.val_batches) and rule.patience is not None:
            value = monitored_value(metrics, rule.monitor, "trainer.early_stopping.monitor")
            position.patience.update(value, rule)
            if (epoch if within else epoch + 1) < (trainer.min_epochs or 0):
                position.patience.postpone(rule)

    def _report_epoch(self, epoch: int, metrics: Mapping[str, float]) -> None:
        position, rule = self.position, self.config.trainer.early_stopping
        self.metrics.write(position.step, epoch, metrics)
        self.metrics.progress.end_epoch(epoch, metrics, position.batch - 1)
        if position.patience.should_stop(rule):
            self.metrics.progress.note(position.patience.describe(rule))
        self.observers.after_validation(position.step, metrics)

    def _close(self, epoch: int, metrics: Mapping[str, float], validated: bool) -> None:
        """Move on to the next step, and save if a checkpoint is due."""
        self.position.close_epoch(self.plan)
        every = self.config.checkpoint.every_n_epochs
        if self.is_complete() or self.save_requested or is_multiple(epoch + 1, every):
            self.save(self._score(metrics, validated))

    def _score(self, metrics: Mapping[str, float], validated: bool) -> float | None:
        """Return the value of `checkpoint.monitor`. Raises ConfigError if no metric has the name."""
        monitor = self.config.checkpoint.monitor
        if monitor and (validated or monitor.startswith("train/")):
            monitored_value(metrics, monitor, "checkpoint.monitor")
        return checkpoint_score(metrics, monitor) if monitor else None

    # ---- signals, and other ends

    def leave(self) -> None:
        """Save, and leave `fit` after a signal. Raises Stopped."""
        self.save()
        self.timer.stop()
        raise Stopped

    def _keep_state(self) -> None:
        """Keep what a validation may change: all variables if a callback has hooks, else those that no optimizer trains."""
        if self.split != "val" or self.load != self.module.swap_averages:
            return
        module, trained = self.module, {id(v) for v in self.model.trainable_variables}
        own = [v for v in module.weights().values() if self.test_hooks or id(v) not in trained]
        kept = [*own, *module.optimizer_state().values()] if self.test_hooks else own
        copies = [
            copy for v in [*kept, *module.metrics.variables] for copy in module.strategy.local_values(v)
        ]
        self._before = [(copy, np.array(copy)) for copy in copies]
        self._states_before = self.states.save()

    def _leave_test(self) -> None:
        """Leave a validation or test after a signal; the validation will run again. Raises Stopped."""
        if not self.position.preempted:
            return
        if self.split != "val" or self.load != self.module.swap_averages:
            raise Stopped
        self.module.swap_averages()
        for copy, value in self._before:
            copy.assign(value)
        self.save(states=self._states_before)
        self.timer.stop()
        raise Stopped

    def reduce(self, split: str) -> dict[str, float]:
        """Return the metrics over all ranks, and agree to stop or save. All ranks call this."""
        requests = [
            float(self.stop.requested is not None),
            float(self._requests_checkpoint()),
            float(self.metrics.progress.take_profile()),
            float(self.end_requested),
            float(self.timer.is_over),
            *self.heartbeat.efficiency.numbers(),
        ]
        reduced = self.module.strategy.sum([*self.module.take(), *requests])
        *sums, to_stop, to_save, to_profile, to_end, over, whole, waited = reduced
        self.metrics.progress.request_profile(int(to_profile))
        self.heartbeat.efficiency.set_sums([whole, waited])
        self.position.preempted |= to_stop > 0
        self.save_requested |= to_save > 0
        if to_end > 0:
            self._end_early(split == "train")
        self._end_training(over > 0)
        return self.module.report(split, sums)

    def check_stop_flag(self) -> None:
        """Check for requests to stop or save in a single process, which needs no agreement of ranks."""
        if self.module.strategy.processes == 1:
            self.position.preempted |= self.stop.requested is not None
            self.save_requested |= self._requests_checkpoint()
            self.metrics.progress.request_profile(self.metrics.progress.take_profile())

    def _requests_checkpoint(self) -> bool:
        """Return whether rank 0 wants to save now, as a feature or `jobs.py save` requests."""
        requested = bool(self.metrics.progress.requests.save) or self.observers.requests_checkpoint()
        return self.checkpoints is not None and requested

    def _take_stop(self) -> None:
        """Note that a callback has set `stop_training`, on which the ranks have to agree."""
        self.end_requested |= bool(self.model.stop_training)
        self.model.stop_training = False

    def _end_training(self, over: bool) -> None:
        """End training at this step if `trainer.max_time` is over."""
        position = self.position
        if over and not (position.timed_out or position.step >= self.plan.total_steps):
            position.timed_out = position.pending = True
            self.metrics.progress.note(self.timer.end(position.step))

    def _agree_on_end(self) -> None:
        """Check at the end of an epoch whether a callback has set `stop_training`. All processes call this."""
        self._take_stop()
        requested = float(self.end_requested)
        if self.module.strategy.processes > 1 and self.has_users:
            requested = self.module.strategy.sum([requested])[0]
        if requested:
            self._end_early(False)

    def _end_early(self, at_step: bool) -> None:
        """End training after `stop_training`. At a step, a validation ends the epoch as in `fit`."""
        position = self.position
        if position.ended:
            return
        position.ended = True
        if position.step < self.plan.total_steps:
            self.ended_by = describe_early_end(self.stopper, position.step, self.plan.total_steps)
            self.metrics.progress.note(self.ended_by)
        position.pending |= at_step

    def _measure(self) -> dict[str, float]:
        """Return and store the metrics of training over all ranks, and the learning rate."""
        metrics = self.reduce("train") | {"lr": self.module.learning_rate()}
        self.position.metrics |= metrics
        return metrics

    # ---- checkpoints

    def _average_statistics(self) -> None:
        """Average the moving statistics. They are linear in the batches, so this may be late."""
        self.module.strategy.average_variables(self.module.moving_statistics())

    def save(self, value: float | None = None, states: dict[str, str] | None = None) -> None:
        """Save a checkpoint, with the value of `checkpoint.monitor` if it was just measured."""
        self._average_statistics()
        self.save_requested, self.position.seconds = False, self.timer.seconds
        metric_state = self.module.metric_state()
        with self.heartbeat.within("checkpoint"):
            start = time.monotonic()
            if self.checkpoints:
                callbacks = self.states.save() if states is None else states
                self.checkpoints.save(self.module, self.position, metric_state, callbacks, value)
            self.observers.after_checkpoint(time.monotonic() - start)
            self.metrics.progress.requests.saved(self.position.step)

    def _save_changed(self, weights: Mapping[str, Any], before: Mapping[str, np.ndarray]) -> None:
        """Validate and save weights that callbacks changed when training ended; training would continue from those before."""
        position = self.position
        self.metrics.progress.note(
            "callbacks changed the weights in on_train_end: the new weights are validated, saved and tested."
        )
        self.module.strategy.broadcast_variables(list(weights.values()))
        try:
            if self.plan.val_batches:
                self.load = lambda: False
                self.evaluate()
            elif self.checkpoints:
                self.checkpoints.keep_validated(self.module, position)
        finally:
            for name, variable in weights.items():
                variable.assign(before[name])
        metrics = {name: v for name, v in position.metrics.items() if name.startswith("val/")}
        self.metrics.write(position.step, position.last_epoch, metrics)
        self.save(self._score(position.metrics | self.added, bool(metrics)))
