"""Collect, reduce, show and write metrics, and let all ranks agree to stop or to save."""

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.trainer.states import TrainerFn

from train_anywhere.config.schema import Config
from train_anywhere.features.feature import Step
from train_anywhere.runs.metrics_csv import CsvLog, prefix_reserved_names
from train_anywhere.training.early_stopping import monitored_value
from train_anywhere.training.lightning.loop.agreement import Agreement
from train_anywhere.training.lightning.loop.clock import Clock
from train_anywhere.training.lightning.loop.steps import accumulates, is_last_batch
from train_anywhere.training.plan import Plan
from train_anywhere.training.reporting.progress import Progress


class MetricsCallback(pl.Callback):
    """Callback that collects, writes and shows the metrics, which the `Connector` receives.

    Attributes:
        epoch_metrics: metrics at the end of the current epoch: of its last steps, and of the validation if any.
    """

    _validated = False

    def __init__(self, config: Config, plan: Plan, progress: Progress, agreement: Agreement) -> None:
        self.config, self.plan, self.progress, self.agreement = config, plan, progress, agreement
        self.heartbeat, self.clock = progress.heartbeat, Clock(progress.heartbeat)
        self.metrics: dict[str, float] = {}
        self.epoch_metrics: dict[str, float] = {}
        self._csv: CsvLog | None = None
        self._lr: Any = None
        self._unlogged: dict[str, float] = {}
        self._epoch_ending = self._even = False

    def resume(self, metrics: dict[str, float]) -> None:
        """Start with the metrics of the checkpoint."""
        self.metrics = dict(metrics)

    def open_csv(self, path: Path, step: int) -> None:
        """Write metrics.csv, after its rows up to `step`."""
        self._csv = CsvLog(path, self.names())
        self._csv.resume(step)

    def names(self) -> list[str]:
        """Return the names of the metrics that are known before training."""
        return [f"{part}/{name}" for part in ("train", "val", "test") for name in self.config.task.monitors]

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Save the last learning rate, for an epoch that resumes with its validation."""
        checkpoint["lr"] = None if self._lr is None else float(self._lr)

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Restore the last learning rate."""
        self._lr = checkpoint.get("lr")

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the first epoch."""
        self.agreement.timer.start()
        self.clock.batch_over()
        self.heartbeat.enter("step", "data")
        self.progress.start_training(trainer.steps_done)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop the timer."""
        self.agreement.timer.stop()

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Any
    ) -> None:
        """Remember the learning rate of this step."""
        first = trainer.optimizers[0]
        # Lightning wraps optimizers, and passes one without groups to a module without any
        if optimizer is getattr(first, "optimizer", first) and optimizer.param_groups:
            self._lr = optimizer.param_groups[0].get("lr")

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count a batch, and the optimizer step that it may complete."""
        stepped = not accumulates(trainer)
        fresh = self._step_end(trainer, pl_module, batch_idx) if stepped else None
        loss = partial(_loss_of, outputs)
        self.progress.add_batches(trainer.current_epoch, batch_idx, fresh, loss=loss)
        self.heartbeat.trained_batch(trainer.steps_done)
        if stepped and (profile := self.progress.profile) and profile.is_on:
            profile.after_step(trainer.steps_done)
        self.clock.batch_over()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Treat values logged from here on as those of the epoch."""
        self._epoch_ending = True

    def _step_end(self, trainer: pl.Trainer, module: Any, batch_idx: int) -> dict[str, float] | None:
        """Count an optimizer step. Return the metrics if they are due, else None."""
        step = trainer.count_step()
        self.agreement.check(trainer)
        if step % self.config.trainer.log_every_n_steps and not self._ends_part(trainer):
            return None
        self.agreement.reduce(trainer, module.device)
        self.agreement.check(trainer)
        fresh = self._learning_rate()
        if self._ends_part(trainer):
            self.epoch_metrics, self._unlogged, self._epoch_ending = fresh, {}, True
        return fresh

    def _ends_part(self, trainer: pl.Trainer) -> bool:
        """Return whether a step is the last one before a validation, or of the epoch or run."""
        loop: Any = trainer.fit_loop.epoch_loop
        return trainer.should_stop or is_last_batch(trainer) or loop.validation_follows()

    def _learning_rate(self) -> dict[str, float]:
        """Return the learning rate used by the last step."""
        return {} if self._lr is None else {"lr": float(self._lr)}

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        *_: Any,
    ) -> None:
        """Let the ranks agree to stop as often as in training, because a validation may be long, if all have the same batches."""
        self.heartbeat.evaluated_batch()
        if self._even and (batch_idx + 1) % self.config.trainer.log_every_n_steps == 0:
            self.agreement.reduce(trainer, pl_module.device)
        self.agreement.check(trainer)

    on_test_batch_end = on_validation_batch_end

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Report the start of a validation."""
        trainer._logger_connector.collected = {}
        self.heartbeat.enter("validation")
        self._compare_batches(trainer)

    def _compare_batches(self, trainer: pl.Trainer) -> None:
        """Compare the numbers of batches of an evaluation over the ranks: those of streams may differ."""
        if trainer.world_size > 1:
            counts: Any = trainer.num_test_batches if trainer.testing else trainer.num_val_batches
            own = trainer.global_rank + 0.5 if math.inf in counts else float(hash(tuple(counts)) % 2**20)
            numbers = torch.tensor([own, -own], device=trainer.strategy.root_device)
            low, high = trainer.strategy.reduce(numbers, reduce_op="min").tolist()
            self._even = low == -high

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Let the ranks agree to stop."""
        self._validated = True
        self.agreement.reduce(trainer, pl_module.device)
        self.agreement.check(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Collect the values that a module has logged during validation."""
        self._collect(trainer)
        self.heartbeat.enter("step", "data")
        self.clock.batch_over()

    def on_sanity_check_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Forget the metrics of the validation batches before training."""
        self.metrics, self.epoch_metrics, self._unlogged, self._validated = {}, {}, {}, False
        trainer._logger_connector.collected = {}

    def epoch_over(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write one row for the end of the epoch, or for a validation within it."""
        self._collect(trainer)
        self.epoch_metrics = self._learning_rate() | self.epoch_metrics
        for name, value in self._unlogged.items():
            if not {name, f"{name}_step", f"{name}_epoch"} & self.epoch_metrics.keys():
                self.epoch_metrics[name] = value
        self.metrics |= self.epoch_metrics
        self._write(trainer, self.epoch_metrics)
        fitting = trainer.state.fn == TrainerFn.FITTING
        if fitting:
            trainer.note_skipped_batches()
        epoch = min(trainer.current_epoch, self.plan.max_epochs - 1)
        batch = trainer.fit_loop.batch_idx if fitting else None
        self.progress.end_epoch(epoch, self.epoch_metrics, batch)
        self.agreement.observers.after_validation(trainer.steps_done, self.epoch_metrics)
        self._epoch_ending = False

    validation_over = epoch_over

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the metrics of the test."""
        self._collect(trainer)
        self.metrics |= self._unlogged
        self._write(trainer, dict(self._unlogged))

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Forget values from before the test."""
        self._unlogged, trainer._logger_connector.collected = {}, {}
        self._compare_batches(trainer)

    def monitored_metrics(self, key: str, monitor: str) -> dict[str, float]:
        """Return the metrics of this epoch. Raises ConfigError if `monitor` was never logged."""
        known = self._unlogged | self.epoch_metrics
        # without a validation, its metrics may be missing
        is_training_metric = not self.plan.val_batches and "val" not in monitor
        if self._validated or is_training_metric:
            monitored_value(self.metrics | known, monitor, key)
        return known

    def _collect(self, trainer: pl.Trainer) -> None:
        """Collect values that were logged in this loop but not passed to the loggers."""
        collected = prefix_reserved_names(trainer._logger_connector.collected, trainer.is_global_zero)
        self._unlogged |= {name: float(value) for name, value in collected.items()}

    def receive(self, trainer_logs: bool, trainer: pl.Trainer, values: Mapping[str, float]) -> None:
        """Handle values that Lightning or a callback passes to the loggers."""
        if not trainer_logs:
            if self._csv:
                self._csv.add(values)  # such as those of LearningRateMonitor
        elif trainer.validating or self._epoch_ending:
            self.epoch_metrics |= values
        elif trainer.training:
            fresh = {**values, **self._learning_rate()}
            self.metrics |= values
            self.progress.display.metrics.update(fresh)
            self._write(trainer, fresh)
            batch = trainer.fit_loop.batch_idx + 1
            self.agreement.observers.after_step(Step(trainer.steps_done, trainer.current_epoch, batch, fresh))

    def _write(self, trainer: pl.Trainer, metrics: dict[str, float]) -> None:
        epoch = trainer.current_epoch + (trainer.state.fn == TrainerFn.FITTING)
        if self._csv:
            self._csv.write(trainer.steps_done, epoch, metrics)


def _loss_of(outputs: Any) -> float:
    """Return this rank's loss from what Lightning passes to callbacks, or nan."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    return float(loss) if isinstance(loss, torch.Tensor) and loss.numel() == 1 else math.nan
