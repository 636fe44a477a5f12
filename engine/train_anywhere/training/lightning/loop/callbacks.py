"""Collect, reduce, show and write metrics around the loop, and let all ranks agree to stop or to save."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.trainer.states import TrainerFn

from train_anywhere.config.schema import Config
from train_anywhere.features.feature import Observers, Step
from train_anywhere.training.early_stopping import Timer
from train_anywhere.training.lightning.checkpoint.position import steps_done
from train_anywhere.training.lightning.loop.clock import Clock
from train_anywhere.training.plan import Plan
from train_anywhere.training.reporting.metrics_csv import CsvLog
from train_anywhere.training.reporting.progress import Progress
from train_anywhere.training.stop import Stop


class MetricsCallback(pl.Callback):
    """Callback that collects the metrics every few steps and at the end of an epoch, writes and shows them.

    A rank's request to stop is reduced together with the metrics. So all ranks know of it at the same step, without an extra
    collective. A single rank checks its stop flag after each step. Subclasses define where the metrics come from.

    Attributes:
        native: whether a task of this project is trained, whose metrics are reduced here.
        csv: metrics.csv, on rank 0 of a run that writes it.
        timer: the time of training, and its limit.
        metrics: the newest value of each metric.
        epoch_metrics: metrics at the end of the current epoch: of its last steps, and of the validation if any.
        stopping: whether all ranks have agreed to stop.
        saving: whether all ranks have agreed to save a checkpoint.
        observers: called after steps, validations and checkpoints.
    """

    native = False

    def __init__(
        self, config: Config, plan: Plan, stop: Stop, progress: Progress, prints: bool = True
    ) -> None:
        self.config, self.plan, self.stop, self.progress = config, plan, stop, progress
        self.heartbeat = progress.heartbeat
        self.every = config.trainer.log_every_n_steps
        self.csv: CsvLog | None = None
        self.timer = Timer(config.trainer)
        self.metrics: dict[str, float] = {}
        self.epoch_metrics: dict[str, float] = {}
        self.observers, self.writes = Observers(), prints and not config.trainer.fast_dev_run
        self.stopping = self.saving = False
        self.clock = Clock(self.heartbeat)
        self._lr: Any = None
        self._units: float | None = None
        self._for_next_row: dict[str, float] = {}
        self._unlogged: dict[str, float] = {}
        self._epoch_ending = self._validated = self._even = False

    def resume(self, metrics: dict[str, float]) -> None:
        """Start with the metrics of the checkpoint."""
        self.metrics = dict(metrics)

    def names(self) -> list[str]:
        """Return the names of the metrics that are known before training."""
        return []

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Save the last learning rate, for an epoch that resumes with its validation and is still to be written."""
        checkpoint["lr"] = None if self._lr is None else float(self._lr)

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Restore the last learning rate."""
        self._lr = checkpoint.get("lr")

    # --- training -------------------------------------------------------------------------------------------------------

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the first epoch."""
        self.timer.start()
        self.clock.batch_over()
        self.heartbeat.enter("step", "data")
        self.progress.steps_done = partial(steps_done, trainer)
        self.progress.start_training(steps_done(trainer))

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop the timer."""
        self.timer.stop()

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Remember the learning rate of this step."""
        # without an optimizer, Lightning passes one without groups
        if optimizer is _torch_optimizer(trainer.optimizers[0]) and optimizer.param_groups:
            self._lr = optimizer.param_groups[0].get("lr")

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count a batch, and the optimizer step that it may complete."""
        stepped = not trainer.fit_loop.epoch_loop._should_accumulate()
        fresh = self._step_end(trainer, pl_module, batch_idx) if stepped else None
        units, self._units = self._units, None
        self.progress.add_batches(
            trainer.current_epoch, batch_idx, fresh, units, loss=partial(_loss_of, outputs)
        )
        self.heartbeat.trained_batch(steps_done(trainer))
        if stepped and (profile := self.progress.profile) and profile.is_on:
            profile.after_step(steps_done(trainer))
        self.clock.batch_over()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Treat values logged from here on as those of the epoch; an epoch that resumes with its validation starts here."""
        self._epoch_ending = True

    def _step_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, batch_idx: int
    ) -> dict[str, float] | None:
        """Count an optimizer step; return the metrics if they are due, else None."""
        trainer.steps_done += 1  # type: ignore[attr-defined]
        step = steps_done(trainer)
        if self.native and step >= self.plan.total_steps and batch_idx + 1 < self.plan.train_batches:
            trainer.should_stop = True  # max_steps may end the run within an epoch
        self._check_stop_flag(trainer)
        if step % self.every and not self._is_last(trainer, batch_idx):
            return None
        fresh = {**self._reduce(trainer, module, "train"), **self._learning_rate(module, step)}
        last = self._is_last(trainer, batch_idx)
        if last:
            self.epoch_metrics, self._unlogged, self._epoch_ending = fresh, {}, True
        self._use_metrics(trainer, module, Step(step, trainer.current_epoch, batch_idx + 1, fresh, last=last))
        return fresh

    def _is_last(self, trainer: pl.Trainer, batch_idx: int) -> bool:
        """Return whether an optimizer step is the last one before a validation, or of the epoch or the run."""
        loop: Any = trainer.fit_loop.epoch_loop
        return trainer.should_stop or loop._num_ready_batches_reached() or loop.validation_follows()

    def _use_metrics(self, trainer: pl.Trainer, module: pl.LightningModule, step: Step) -> None:
        """Use the metrics that were reduced at a step."""

    def _learning_rate(self, module: pl.LightningModule, step: int) -> dict[str, float]:
        """Return the learning rate used by the last step."""
        return {} if self._lr is None else {"lr": float(self._lr)}

    # --- evaluation -----------------------------------------------------------------------------------------------------

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
        if self._even and (batch_idx + 1) % self.every == 0:
            self._agree(trainer, trainer.strategy.reduce(self._requests(pl_module), reduce_op="sum").tolist())
        self._check_stop_flag(trainer)

    on_test_batch_end = on_validation_batch_end

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Report the start of a validation."""
        self.heartbeat.enter("validation")
        self._compare_batches(trainer)

    def _compare_batches(self, trainer: pl.Trainer) -> None:
        """Compare the numbers of batches of an evaluation over the ranks: those of streams may differ."""
        if trainer.world_size > 1:
            counts: Any = trainer._evaluation_loop.max_batches
            own = trainer.global_rank + 0.5 if math.inf in counts else float(hash(tuple(counts)) % 2**20)
            numbers = torch.tensor([own, -own], device=trainer.strategy.root_device)
            low, high = trainer.strategy.reduce(numbers, reduce_op="min").tolist()
            self._even = low == -high

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Reduce the metrics of the validation."""
        self._validated = True
        self.epoch_metrics |= self._reduce(trainer, pl_module, "val")

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Collect the values that a module has logged during validation."""
        self._collect(trainer)
        self.heartbeat.enter("step", "data")
        self.clock.batch_over()

    def on_sanity_check_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Forget the metrics of the validation batches before training."""
        self.metrics, self.epoch_metrics, self._unlogged, self._validated = {}, {}, {}, False
        trainer._logger_connector.collected = {}  # type: ignore[attr-defined]

    def epoch_over(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write one row for the end of the epoch, or for a validation within it."""
        self._collect(trainer)
        self.epoch_metrics = self._learning_rate(pl_module, steps_done(trainer)) | self.epoch_metrics
        for name, value in self._unlogged.items():
            if not {name, f"{name}_step", f"{name}_epoch"} & self.epoch_metrics.keys():
                self.epoch_metrics[name] = value
        if not self.native:
            self.metrics |= self.epoch_metrics
        self._write(trainer, self.epoch_metrics)
        batch = trainer.fit_loop.batch_idx if trainer.state.fn == TrainerFn.FITTING else None
        if batch is not None and not trainer.should_stop and not trainer.fit_loop.epoch_loop.mid_epoch:  # type: ignore[attr-defined]
            done = trainer.fit_loop.epoch_loop.batch_progress.current
            trainer.skips |= done.completed < done.ready  # type: ignore[attr-defined]
        self.progress.end_epoch(
            min(trainer.current_epoch, self.plan.max_epochs - 1), self.epoch_metrics, batch
        )
        self.observers.after_validation(steps_done(trainer), self.epoch_metrics)
        self._epoch_ending = False

    validation_over = epoch_over

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Reduce and write the metrics of the test."""
        self._collect(trainer)
        tested = self._test_metrics(trainer, pl_module)
        self.metrics |= tested
        self._write(trainer, tested)

    def _test_metrics(self, trainer: pl.Trainer, module: pl.LightningModule) -> dict[str, float]:
        """Return the metrics of the test."""
        return dict(self._unlogged)

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Forget values from before the test."""
        self._unlogged = {}
        self._compare_batches(trainer)

    def monitored_metrics(self, key: str, monitor: str) -> dict[str, float]:
        """Return the metrics of this epoch; `monitor` may be missing if there was no validation.

        Raises:
            ConfigError: there is no metric with the name `monitor`, which is the value of the configuration `key`.
        """
        return self._unlogged | self.epoch_metrics

    # --- from Lightning -------------------------------------------------------------------------------------------------

    def _collect(self, trainer: pl.Trainer) -> None:
        """Collect values that were logged in this loop but not passed to the loggers."""

    def receive(self, trainer_logs: bool, trainer: pl.Trainer, values: Mapping[str, float]) -> None:
        """Handle values that Lightning or a callback passes to the loggers."""
        if not trainer_logs:
            self._for_next_row |= values  # such as those of LearningRateMonitor
        elif trainer.validating or self._epoch_ending:
            self.epoch_metrics |= values
        elif trainer.training:
            fresh = {**values, **self._learning_rate(trainer.lightning_module, 0)}
            self.metrics |= values
            self.progress.metrics.update(fresh)
            self._write(trainer, fresh)
            self.observers.after_step(
                Step(steps_done(trainer), trainer.current_epoch, trainer.fit_loop.batch_idx + 1, fresh)
            )

    # --- all ranks ------------------------------------------------------------------------------------------------------

    def _reduce(self, trainer: pl.Trainer, module: pl.LightningModule, part: str) -> dict[str, float]:
        """Return metrics over all ranks, and agree to stop."""
        if trainer.world_size > 1:
            self._agree(trainer, trainer.strategy.reduce(self._requests(module), reduce_op="sum").tolist())
        self._check_stop_flag(trainer)
        return {}

    def _requests(self, module: pl.LightningModule) -> torch.Tensor:
        """Return the numbers that are reduced with the metrics: requests to stop, save, end and profile, and the efficiency."""
        requests = [
            self.stop.requested is not None,
            self._requests_checkpoint(),
            self.timer.is_over,
            self.progress.take_profile(),
        ]
        numbers = [*requests, *self.heartbeat.efficiency.numbers()]
        return torch.tensor(numbers, dtype=torch.float64, device=module.device)

    def _agree(self, trainer: pl.Trainer, requests: list[float]) -> None:
        self.stopping, self.saving, over = (request > 0 for request in requests[:3])
        self.progress.request_profile(int(requests[3]))
        self.heartbeat.efficiency.set_sums(requests[4:])
        self._end_training(trainer, over)

    def _end_training(self, trainer: pl.Trainer, over: bool) -> None:
        """End training at this step if `trainer.max_time` is over."""
        if over and not trainer.should_stop:
            trainer.should_stop = True
            self.progress.note(self.timer.end(steps_done(trainer)))

    def _check_stop_flag(self, trainer: pl.Trainer) -> None:
        """Update the stop and save flags of a single rank, which needs no agreement, and end training if its time is over."""
        if trainer.world_size == 1:
            self.stopping = self.stop.requested is not None
            self.saving = self._requests_checkpoint()
            self._end_training(trainer, self.timer.is_over)
            if self.progress.requests.profile:
                self.progress.request_profile(self.progress.take_profile())

    def _requests_checkpoint(self) -> bool:
        """Return whether rank 0 wants to save now, as a feature or `jobs.py save` requests."""
        return self.writes and (bool(self.progress.requests.save) or self.observers.requests_checkpoint())

    def _write(self, trainer: pl.Trainer, metrics: dict[str, float]) -> None:
        step = steps_done(trainer)
        epoch = trainer.current_epoch + (trainer.state.fn == TrainerFn.FITTING)
        if self.csv:
            self.csv.write(step, epoch, self._for_next_row | metrics)
        self._for_next_row = {}


def _loss_of(outputs: Any) -> float:
    """Return the loss of a batch on this rank from what Lightning passes to callbacks; nan if there is none."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    return float(loss) if isinstance(loss, torch.Tensor) and loss.numel() == 1 else math.nan


def _torch_optimizer(optimizer: Any) -> Any:
    """Return torch's optimizer from Lightning's wrapper."""
    return getattr(optimizer, "optimizer", optimizer)
