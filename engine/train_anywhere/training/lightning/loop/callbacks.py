"""Collect, reduce, show and write metrics, and let all ranks agree to stop or to save."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.trainer.states import TrainerFn

from train_anywhere.config.schema import Config
from train_anywhere.features.feature import Step
from train_anywhere.runs.metrics_csv import CsvLog, prefix_reserved_names
from train_anywhere.training.early_stopping import Patience, monitored_value
from train_anywhere.training.lightning.checkpoint.rank_state import gather_checksums
from train_anywhere.training.lightning.loop import steps
from train_anywhere.training.lightning.loop.clock import Clock
from train_anywhere.training.lightning.loop.course import Agreement, TrainingCheck
from train_anywhere.training.lightning.loop.over_ranks import OverRanks, refuse_different_weights
from train_anywhere.training.plan import is_multiple


class MetricsCallback(pl.Callback):
    """Callback that collects, writes and shows the metrics.

    It calls `record` with the first batch, and `opened` at the start of an evaluation, which has opened its loaders.

    Attributes:
        epoch_metrics: metrics at the end of the current epoch: of its last steps, and of the validation if any.
        mid_epoch: whether the newest validation is one after which the epoch continues.
    """

    _validated = False
    mid_epoch = False

    def __init__(
        self,
        config: Config,
        agreement: Agreement,
        over_ranks: OverRanks | None,
        csv: CsvLog | None,
        record: Callable[[Any], None] | None,
        opened: Callable[[pl.Trainer], None],
    ) -> None:
        self.over_ranks, self._csv, self._record, self._opened = over_ranks, csv, record, opened
        self.config, self.agreement, self.check = config, agreement, TrainingCheck()
        self.course, self.progress = agreement.course, agreement.progress
        self.plan, self.heartbeat = self.course.plan, self.progress.heartbeat
        self.clock = Clock(self.heartbeat, self.course.loaders_opened)
        self.metrics: dict[str, float] = {}
        self.epoch_metrics: dict[str, float] = {}
        self._lr: Any = None
        self._unlogged: dict[str, float] = {}
        # values of callback_metrics before this evaluation, before this epoch, and the names of a checkpoint's old ones
        self._before: dict[str, Any] = {}
        self._known: dict[str, Any] = {}
        self._old: list[str] = []
        self._epoch_ending = self._even = False

    def on_save_checkpoint(self, trainer: pl.Trainer, module: Any, checkpoint: dict[str, Any]) -> None:
        """Save the last learning rate, for an epoch that resumes with its validation, and which metrics are older than this epoch."""
        checkpoint["lr"] = None if self._lr is None else float(self._lr)
        checkpoint["old_metrics"] = [*trainer.callback_metrics.keys() - self._changed(trainer, self._known)]
        checkpoint["training_check"] = dict(vars(self.check))

    def on_load_checkpoint(self, trainer: pl.Trainer, module: Any, checkpoint: dict[str, Any]) -> None:
        """Restore what `on_save_checkpoint` has saved."""
        self._lr, self._old = checkpoint.get("lr"), checkpoint.get("old_metrics", [])
        self.check = TrainingCheck(**checkpoint["training_check"])

    def training_started(self, trainer: pl.Trainer) -> None:
        """Tell metrics of this epoch from older ones that a checkpoint has restored."""
        # not read before the first batch of a new run: Lightning would compute them
        known = trainer.callback_metrics if self._old else {}
        self._known = {name: known[name] for name in self._old if name in known}

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the first epoch."""
        self.agreement.timer.start()
        self.clock.batch_over()
        self.heartbeat.enter("step", "data")
        self.progress.start_training(self.course.steps_done)

    def on_train_end(self, *args: Any) -> None:
        """Stop the timer."""
        self.agreement.timer.stop()

    def on_before_optimizer_step(self, trainer: pl.Trainer, module: Any, optimizer: Any) -> None:
        """Remember the learning rate of this step."""
        self.check.look_at(optimizer)
        first = trainer.optimizers[0]
        # Lightning wraps optimizers, and passes one without groups to a module without any
        if optimizer is getattr(first, "optimizer", first) and optimizer.param_groups:
            self._lr = optimizer.param_groups[0].get("lr")

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Count a batch, and the optimizer step that it may complete."""
        stepped = not steps.accumulates(trainer)
        self.check.batches += 1
        # `outputs` is empty without a loss
        self.check.skipped += not outputs and module.automatic_optimization
        if self._record:
            self._record(batch)
            self._record = None
        if self.over_ranks:
            self.over_ranks.count_rows(batch)
            if batch_idx == 0:
                self.over_ranks.compare_names()
        fresh = self._step_end(trainer) if stepped else None
        loss = partial(_loss_of, outputs)
        self.progress.add_batches(trainer.current_epoch, batch_idx, fresh, loss=loss)
        self.heartbeat.trained_batch(self.course.steps_done)
        if stepped and (profile := self.progress.profile):
            profile.after_step(self.course.steps_done)
        self.clock.batch_over()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Treat values logged from here on as those of the epoch."""
        self._epoch_ending = True

    def _step_end(self, trainer: pl.Trainer) -> dict[str, float] | None:
        """Count an optimizer step. Return the metrics if they are due, else None."""
        self.course.steps_done += 1
        self.agreement.update(trainer, exchange=False)
        ends = steps.is_stopping(trainer) or steps.is_last_batch(trainer) or steps.validation_follows(trainer)
        if self.course.steps_done % self.config.trainer.log_every_n_steps and not ends:
            return None
        self.agreement.update(trainer)
        fresh = self._learning_rate()
        if ends or steps.is_stopping(trainer):  # before a validation, or at the end of the epoch or run
            self.epoch_metrics, self._unlogged, self._epoch_ending = fresh, {}, True
        return fresh

    def _learning_rate(self) -> dict[str, float]:
        """Return the learning rate used by the last step."""
        return {} if self._lr is None else {"lr": float(self._lr)}

    def on_validation_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int, which: int = 0
    ) -> None:
        """Let the ranks agree to stop as often as in training, because a validation may be long, if all have the same batches."""
        self.heartbeat.evaluated_batch()
        if self.over_ranks:
            self.over_ranks.count_rows(batch)
            if self._even and batch_idx == which == 0:
                self.over_ranks.compare_names()
        due = (batch_idx + 1) % self.config.trainer.log_every_n_steps == 0
        self.agreement.update(trainer, exchange=self._even and due)

    on_test_batch_end = on_validation_batch_end

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Report the start of a validation."""
        # to read them before the first step of a run changes them
        fitting = trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking
        self._before = dict(trainer.callback_metrics) if fitting else {}
        self.heartbeat.enter("validation")
        self._start_evaluation(trainer)

    def before_validation(self, trainer: pl.Trainer) -> None:
        """Note whether the epoch continues after a validation. A run that user code had ended resumes with its last one."""
        trainer.should_stop |= self.course.stopped
        self.course.stopped = False
        self.mid_epoch = not (steps.is_last_batch(trainer) or steps.is_stopping(trainer))

    def _start_evaluation(self, trainer: pl.Trainer) -> None:
        """Report the loaders of an evaluation, and compare its batches over the ranks: those of streams may differ."""
        self._opened(trainer)
        if self.over_ranks:
            counts: Any = trainer.num_test_batches if trainer.testing else trainer.num_val_batches
            known = math.inf not in counts
            checksums = gather_checksums([repr(counts).encode()], trainer)
            self._even = known and len({*checksums}) == 1

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Let the ranks agree to stop."""
        self._validated = not trainer.sanity_checking
        self.agreement.update(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Collect the values that a module has logged during validation, unless it is the one before training."""
        if not trainer.sanity_checking:
            self._collect(trainer, self._before)
        self.heartbeat.enter("step", "data")
        self.clock.batch_over()

    def epoch_over(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write one row for the end of the epoch, and compare the weights of the ranks if due. Raises RanksDifferError."""
        self.collect_epoch(trainer)
        if trainer.state.fn == TrainerFn.FITTING:
            done = trainer.fit_loop.epoch_loop.batch_progress.current
            self.course.skips |= not trainer.should_stop and done.completed < done.ready
            every = self.config.monitor.compare_weights_every_n_epochs
            if is_multiple(steps.newest_epoch(trainer) + 1, every):
                refuse_different_weights(pl_module, trainer)
        self.validation_over(trainer, pl_module)

    def validation_over(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write one row for the end of the epoch, or for a validation within it."""
        self.epoch_metrics = self._learning_rate() | self.epoch_metrics
        for name, value in self._unlogged.items():
            if not {name, f"{name}_step", f"{name}_epoch"} & self.epoch_metrics.keys():
                self.epoch_metrics[name] = value
        self.metrics |= self.epoch_metrics
        self._write(trainer, self.epoch_metrics)
        fitting = trainer.state.fn == TrainerFn.FITTING
        batch = trainer.fit_loop.batch_idx if fitting else None
        self.progress.end_epoch(steps.newest_epoch(trainer), self.epoch_metrics, batch)
        self.agreement.observers.after_validation(self.course.steps_done, self.epoch_metrics)
        self._epoch_ending = False

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the metrics of the test."""
        self._collect(trainer, self._before)
        self.metrics |= self._unlogged
        self._write(trainer, dict(self._unlogged))

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Forget values from before the test."""
        self._unlogged, self._before = {}, {}
        self._start_evaluation(trainer)

    def monitored_metrics(self, key: str, monitor: str) -> dict[str, float]:
        """Return the metrics of this epoch. Raises ConfigError if `monitor` was never logged."""
        known = self._unlogged | self.epoch_metrics
        # without a validation, its metrics may be missing
        is_training_metric = not self.plan.val_batches and "val" not in monitor
        if self._validated or is_training_metric:
            monitored_value(self.metrics | known, monitor, key)
        return known

    def collect_epoch(self, trainer: pl.Trainer) -> None:
        """Collect the values of this epoch."""
        self._collect(trainer, self._known)
        self._known = dict(trainer.callback_metrics)

    def _changed(self, trainer: pl.Trainer, before: Mapping[str, Any]) -> dict[str, Any]:
        """Return the metrics that are not those of `before`: each new value is in a new tensor."""
        found = trainer.callback_metrics.items()
        return {n: v for n, v in found if n not in before or v.data_ptr() != before[n].data_ptr()}

    def _collect(self, trainer: pl.Trainer, before: Mapping[str, Any]) -> None:
        """Collect values that are newer than `before`, also those that are not passed to the loggers."""
        fresh = self._changed(trainer, before)
        self._known |= fresh
        values = {n: float(v) for n, v in fresh.items() if n.removesuffix("_step") + "_epoch" not in fresh}
        if self.over_ranks:
            values = self.over_ranks.reduce(values)
        values = prefix_reserved_names(values, trainer.is_global_zero)
        self._unlogged |= values
        self.epoch_metrics |= {name: values[name] for name in values.keys() & self.epoch_metrics.keys()}

    def receive(self, trainer_logs: bool, trainer: pl.Trainer, values: Mapping[str, float]) -> None:
        """Handle values that Lightning or a callback passes to the loggers."""
        values = prefix_reserved_names(values, trainer.is_global_zero)
        if not trainer_logs:
            if self._csv:
                self._csv.add(values)  # such as those of LearningRateMonitor
        elif trainer.validating or self._epoch_ending:
            self.epoch_metrics |= values
        elif trainer.training and values:
            if self.over_ranks:
                values = self.over_ranks.reduce(values)
            fresh = {**values, **self._learning_rate()}
            self.metrics |= values
            self.progress.measured(fresh)
            self._write(trainer, fresh)
            batch = trainer.fit_loop.batch_idx + 1
            step = Step(self.course.steps_done, trainer.current_epoch, batch, fresh)
            self.agreement.observers.after_step(step)

    def _write(self, trainer: pl.Trainer, metrics: dict[str, float]) -> None:
        if self._csv:
            self._csv.write(self.course.steps_done, steps.newest_epoch(trainer) + 1, metrics)


def _loss_of(outputs: Any) -> float:
    """Return this rank's loss from what Lightning passes to callbacks, or nan."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    return float(loss) if isinstance(loss, torch.Tensor) and loss.numel() == 1 else math.nan


class EarlyStop(EarlyStopping):
    """Ends training when a metric has not improved for `patience` validations.

    Lightning calls an EarlyStopping after the hooks of an epoch that can log the metric. This one counts as the Keras runs do.
    """

    def __init__(self, metrics: MetricsCallback) -> None:
        self.metrics, self.limits = metrics, metrics.config.trainer
        self.rule = rule = self.limits.early_stopping
        super().__init__(
            str(rule.monitor), rule.min_delta, max(1, rule.patience or 1), mode=rule.mode or "min"
        )
        self.count, self._compared = Patience(), -1  # the step of the newest comparison

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Compare a validation within an epoch with the best one."""
        if self.metrics.mid_epoch and not trainer.sanity_checking:
            self._compare_metrics(trainer, trainer.current_epoch)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Compare the epoch with the best one, if it was validated and not compared yet."""
        self.metrics.collect_epoch(trainer)
        self._compare_metrics(trainer, trainer.current_epoch + 1)

    def _compare_metrics(self, trainer: pl.Trainer, epochs: int) -> None:
        """Compare the newest metrics with the best ones, after so many complete `epochs`."""
        step = self.metrics.course.steps_done
        measured = self.metrics.monitored_metrics("trainer.early_stopping.monitor", self.monitor)
        if self.monitor in measured and self._compared != step:
            self._compared = step
            self.count.update(measured[self.monitor], self.rule)
            self._end_if_over(trainer, epochs)
            if self.count.should_stop(self.rule):
                self.metrics.progress.note(self.count.describe(self.rule))

    def state_dict(self) -> dict[str, Any]:
        """Return the best value, and the validations since."""
        return dict(vars(self.count))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the count."""
        self.count = Patience(**state_dict)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop a resumed run that had stopped early, unless `trainer.min_epochs` or `min_steps` was raised."""
        self._end_if_over(trainer, trainer.current_epoch)

    def _end_if_over(self, trainer: pl.Trainer, epochs: int) -> None:
        if self.limits.is_too_early(epochs, trainer.global_step):
            self.count.postpone(self.rule)
        elif self.count.should_stop(self.rule):
            self.metrics.course.end(trainer)
