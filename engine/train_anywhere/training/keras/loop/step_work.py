"""The work between the steps of `fit`: metrics, validations within an epoch, signals, checkpoints."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from train_anywhere.checkpoints.checkpointer import AsyncCheckpointer
from train_anywhere.config.schema import Config
from train_anywhere.features import Features
from train_anywhere.features.feature import Observers, Rank, Step
from train_anywhere.job.rank_process import RankProcess
from train_anywhere.runs.metrics_csv import CsvLog
from train_anywhere.training.early_stopping import (
    Timer,
    checkpoint_score,
    describe_early_end,
    monitored_value,
)
from train_anywhere.training.event_files import EventFiles
from train_anywhere.training.keras.batches import Loader
from train_anywhere.training.keras.checkpoint import Position, copy_values, save_state
from train_anywhere.training.keras.dropin.user_callbacks import make_callbacks
from train_anywhere.training.keras.loop.tensorboard import TensorBoard
from train_anywhere.training.keras.module import Module
from train_anywhere.training.plan import Plan, is_multiple, validation_due
from train_anywhere.training.reporting.progress import Progress
from train_anywhere.training.tracking import open_loggers


class Stopped(Exception):
    """Leaves `fit` or `evaluate` after a signal."""


def overrides(callbacks: Iterable[keras.callbacks.Callback], *kinds: str) -> bool:
    """Return whether a callback has a hook of one of these kinds, such as "train_batch"."""
    base = keras.callbacks.Callback
    hooks = [f"on_{kind}_{when}" for kind in kinds for when in ("begin", "end")]
    pairs = ((getattr(c, name), getattr(base, name)) for c in callbacks for name in hooks)
    return any(getattr(hook, "__func__", hook) is not original for hook, original in pairs)


class StepWork(keras.callbacks.CallbackList):
    """The callbacks of one call of `fit`, and the work between its steps.

    Reading the metrics waits for the device and, with several ranks, is a collective. So they are read every `log_every_n_steps` steps and
    at the end of an epoch, together with requests of any rank to stop and of rank 0 to save.

    Attributes:
        checkpointer: writes checkpoints, on rank 0; None on other ranks.
        restored: content of state.json in the checkpoint that the run resumes from.
        has_users: whether all ranks have a callback of the user.
        added: metrics that callbacks added to the logs of the last epoch.
        ended_by: a line about the end, if user code ended training before its last step.
        validations: the epochs that `fit` validates, from 1: the current one, or none.
        replaying: whether `fit` has not reached the position of the checkpoint yet.
    """

    callbacks: list[Any]

    def __init__(
        self,
        config: Config,
        process: RankProcess,
        plan: Plan,
        position: Position,
        module: Module,
        loader: Loader,
        progress: Progress,
        checkpointer: AsyncCheckpointer | None,
        restored: dict[str, Any] | None,
    ) -> None:
        users, self.states = make_callbacks(config.callbacks, module, position, progress.report)
        options = {"verbose": 0, "epochs": plan.max_epochs, "steps": plan.steps_per_epoch}
        super().__init__(users, add_history=False, add_progbar=False, model=module.model, **options)
        self.config, self.plan, self.position = config, plan, position
        self.module, self.loader, self.restored = module, loader, restored
        self.progress, self.checkpointer, self.stop = progress, checkpointer, process.stop
        writes, run, step = checkpointer is not None, process.run, position.step
        self.csv = CsvLog(run.metrics_csv) if writes and config.monitor.csv else None
        board = writes and config.monitor.tensorboard
        self.board = TensorBoard(EventFiles(run.tensorboard), step) if board else None
        self.loggers = open_loggers(config, run, writes)
        if self.csv:
            self.csv.resume(step)
        self.pace, self.heartbeat = module.strategy.pace, process.heartbeat
        self.timer = Timer(config.trainer, position.seconds)
        strategy = module.strategy
        rank = Rank(run, strategy.rank * strategy.local, strategy.replicas)
        self.observers = Observers(Features.of(config).observers(rank))
        own = self.states.callbacks.values()
        self.has_users = any(not isinstance(one, keras.callbacks.History) for one in own)
        self.save_requested = self.end_requested = False
        self.added: dict[str, float] = {}
        self.stopper: str | None = None
        self.ended_by: str | None = None
        self.validations: list[int] = []
        self.train_hooks = overrides(users, "train_batch", "batch")
        self.test_hooks = overrides(users, "test", "test_batch")
        self.split = "val"
        self.load: Callable[[], object] | None = None
        self._validated = -1, dict[str, np.ndarray]()
        self.epoch = self._trained = 0
        self.replaying = False
        self._functions: tuple[Any, Any] = None, None
        self._restore_counts = module.strategy.snapshot(module.metric_variables)
        self._counted = 0, position.step
        self._measured = self._logged = self._leaving = False
        self._restore: Callable[[], None] = lambda: None
        self._states_before: dict[str, str] = {}

    def is_complete(self) -> bool:
        """Return whether training is complete."""
        position, rule = self.position, self.config.trainer.early_stopping
        early = position.ended or position.timed_out or position.patience.should_stop(rule)
        return (early or position.step >= self.plan.total_steps) and not position.pending

    def evaluate(self, split: str = "val", load: Callable[[], object] | None = None) -> None:
        """Measure a split now, with the weights that `load` loads, after callbacks may have changed them.

        Without `load` it is a validation of the training, which runs again as a whole if a signal interrupts it.
        """
        self.split, self.load = split, load
        data = self.loader.evaluation(split, getattr(self.plan, f"{split}_batches"))
        self.model.evaluate(**data, callbacks=self, verbose=0)

    def _call(self, hook: str, number: int, logs: Any = None) -> None:
        """Call a hook of each callback, and note the one that sets `stop_training`."""
        for one in self.callbacks:
            getattr(one, hook)(number, logs)
            if self.stopper is None and self.model.stop_training:
                self.stopper = type(one).__name__

    def write(self, step: int, epoch: int, metrics: Mapping[str, float]) -> None:
        """Write metrics to the files and loggers, on rank 0. The `epoch` counts from 0."""
        if self.csv:
            self.csv.write(step, epoch + 1, metrics)
        if self.board:
            self.board.write(step, metrics)
        for logger in self.loggers:
            logger.log_metrics(dict(metrics), step)

    # ---- steps

    def _end_step(self, steps: int) -> None:
        """Count steps, report metrics, and save if a checkpoint is due."""
        position, start, every = self.position, self.position.step, self.config.trainer.log_every_n_steps
        if self.checkpointer:
            self.checkpointer.check()
        position.advance(self.plan, self.config.trainer, steps)
        self._take_stop(at_step=True)
        metrics = None
        if position.pending or position.step // every > start // every:
            metrics = self.reduce("train") | {"lr": self.module.learning_rate()}
            position.metrics |= metrics
            if not position.pending:  # else the end of the epoch writes the row, together with the validation
                self.write(position.step, position.epoch, metrics)
            at = (position.step, position.epoch, position.batch)
            self.observers.after_step(Step(*at, metrics, last=position.pending))
            if self.loader.is_read_again("train"):  # data with its own batches: the speed counts their rows
                (before, since), self._counted = self._counted, (int(self.module.rows.numpy()), position.step)
                if rows := self._counted[0] - before:
                    units = rows * self.progress.units_per_row
                    self.progress.throughput.rows = units / (position.step - since) / self.plan.accumulate
        loss = lambda: float(self.module.batch_logs().get("loss", math.nan))  # noqa: E731  # of this process
        self.progress.add_batches(
            position.epoch, position.batch - 1, metrics, steps * self.plan.accumulate, loss
        )
        self.save_requested |= self.observers.reach(position.step)
        if profile := self.progress.profile:
            profile.after_step(position.step)
        if self.save_requested and not (position.pending or position.preempted):
            self.save()
        self.heartbeat.trained_batch(position.step)

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
        restore_counts = self.module.strategy.snapshot(self.module.metric_variables)
        self.evaluate()
        restore_counts()
        self._take_stop()
        metrics = self._metrics(True)
        self._count_patience(epoch, metrics, True)
        self._measured = True
        if position.timed_out or position.ended or position.patience.should_stop(trainer.early_stopping):
            self.validations.clear()  # `fit` ends the epoch here
            self.model.stop_training = self._leaving = True
            return
        self._close(epoch, metrics)
        self._measured = False

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
            if trainer.is_too_early(epoch if within else epoch + 1, position.step):
                position.patience.postpone(rule)

    def _close(self, epoch: int, metrics: Mapping[str, float], validated: bool | None = None) -> None:
        """Report an epoch, move on to the next step, and save if a checkpoint is due. None: a validation within the epoch."""
        position, rule = self.position, self.config.trainer.early_stopping
        self.write(position.step, epoch, metrics)
        self.progress.end_epoch(epoch, metrics, position.batch - 1)
        if position.patience.should_stop(rule):
            self.progress.note(position.patience.describe(rule))
        self.observers.after_validation(position.step, metrics)
        if validated is not None:
            self._take_stop(agree=True)
            if is_multiple(epoch + 1, self.config.monitor.compare_weights_every_n_epochs):
                self.module.refuse_different_weights()
        position.pending = False
        if position.batch >= self.plan.train_batches:
            position.epoch, position.batch = position.epoch + 1, 0
        every = self.config.checkpoint.every_n_epochs
        if self.is_complete() or self.save_requested or is_multiple(epoch + 1, every):
            self.save(self._score(metrics, bool(validated)))

    def _score(self, metrics: Mapping[str, float], validated: bool) -> float | None:
        """Return the value of `checkpoint.monitor`. Raises ConfigError if no metric has the name."""
        monitor = self.config.checkpoint.monitor
        if monitor and (validated or monitor.startswith("train/")):
            monitored_value(metrics, monitor, "checkpoint.monitor")
        return checkpoint_score(metrics, monitor) if monitor else None

    # ---- signals, and other ends

    def leave(self, states: dict[str, str] | None = None) -> None:
        """Save, and leave `fit` after a signal. Raises Stopped."""
        self.save(states=states)
        self.timer.stop()
        raise Stopped

    def _keep_state(self) -> None:
        """Keep what a validation may change: all variables if a callback has hooks, else those that no optimizer trains."""
        module, trained = self.module, {id(v) for v in self.model.trainable_variables}
        own = [v for v in module.weights().values() if self.test_hooks or id(v) not in trained]
        kept = [*own, *module.optimizer_state().values()] if self.test_hooks else own
        self._restore = module.strategy.snapshot([*kept, *module.metric_variables])
        self._states_before = self.states.save()

    def _leave_test(self) -> None:
        """Leave a validation or test after a signal; the validation will run again. Raises Stopped."""
        if self.position.preempted and self.load is None:
            self._restore()
            self.leave(self._states_before)
        if self.position.preempted:
            raise Stopped

    def reduce(self, split: str) -> dict[str, float]:
        """Return the metrics over all ranks, and follow the requests of all. All ranks call this."""
        efficiency = self.heartbeat.efficiency
        own = np.array([*self._requests(), *efficiency.sums])
        *sums, numbers = self.module.strategy.sum_arrays([*self.module.take(), own])
        *requests, whole, waited = numbers.tolist()
        efficiency.set_sums([whole, waited])
        self._follow(requests, split == "train")
        return self.module.report(split, sums)

    def check_requests(self, at_step: bool = False) -> None:
        """Follow the requests in a single process, which needs no agreement of ranks."""
        if self.module.strategy.processes == 1:
            self._follow(self._requests(), at_step)

    def _requests(self) -> list[float]:
        """Return whether this process requests to stop, to save, to profile, and to end training by a callback or in time."""
        saves = bool(self.progress.requests.save) or self.observers.requests_checkpoint()
        requests = [
            self.stop.requested is not None,
            self.checkpointer is not None and saves,  # by a feature or `jobs.py save`
            self.progress.take_profile(),
            self.end_requested,
            self.timer.is_over,
        ]
        return [*map(float, requests)]

    def _follow(self, requests: Sequence[float], at_step: bool) -> None:
        """Do what a rank has requested by `_requests`."""
        to_stop, to_save, to_profile, to_end, over = requests
        position = self.position
        position.preempted |= to_stop > 0
        self.save_requested |= to_save > 0
        self.progress.request_profile(int(to_profile))
        if to_end > 0:
            self._end_early(at_step)
        if over > 0 and not (position.timed_out or position.step >= self.plan.total_steps):
            position.timed_out = position.pending = True
            self.progress.note(self.timer.end(position.step))

    def _take_stop(self, at_step: bool = False, agree: bool = False) -> None:
        """End training if a callback has set `stop_training`. Several processes have to `agree`: all of them call this."""
        self.end_requested |= bool(self.model.stop_training)
        self.model.stop_training = False
        self.check_requests(at_step)
        requested = [float(self.end_requested)]
        if agree and (self.module.strategy.sum(requested) if self.has_users else requested)[0]:
            self._end_early(at_step)

    def _end_early(self, at_step: bool) -> None:
        """End training after `stop_training`. At a step, a validation ends the epoch as in `fit`."""
        position = self.position
        if position.ended:
            return
        position.ended = True
        if position.step < self.plan.total_steps:
            self.ended_by = describe_early_end(self.stopper, position.step, self.plan.total_steps)
            self.progress.note(self.ended_by)
        position.pending |= at_step

    # ---- checkpoints

    def save(self, value: float | None = None, states: dict[str, str] | None = None) -> None:
        """Save a checkpoint, with the value of `checkpoint.monitor` if it was just measured."""
        self.module.strategy.average_variables(self.module.moving_statistics())
        self.save_requested, self.position.seconds = False, self.timer.seconds
        metric_state = self.module.metric_state()
        with self.heartbeat.within("checkpoint"):
            start = time.monotonic()
            if self.checkpointer:
                callbacks = self.states.save() if states is None else states
                known = self._validated[1] if self._validated[0] == self.position.step else None
                save_state(
                    self.checkpointer, self.module, self.position, metric_state, callbacks, value, known
                )
            self.observers.after_checkpoint(time.monotonic() - start)
            self.progress.requests.saved(self.position.step)

    def _keep_validated(self) -> None:
        """Keep the current weights, which were validated, for a checkpoint of this step."""
        if self.checkpointer:
            self._validated = self.position.step, copy_values(self.module.weights())
