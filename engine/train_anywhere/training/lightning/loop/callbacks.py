"""What happens around the loop: metrics, display, early stopping, and the agreement of all ranks to stop."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.trainer.states import TrainerFn

from train_anywhere.config.choices import OtherSchedule
from train_anywhere.config.schema import Config
from train_anywhere.features.feature import Observers, Step
from train_anywhere.monitor.heartbeat import own as heartbeat
from train_anywhere.tasks import Task
from train_anywhere.training.lightning.checkpoint.position import steps_done
from train_anywhere.training.lightning.dropin.loggers import Received
from train_anywhere.training.lightning.loop.clock import Clock
from train_anywhere.training.lightning.module import TaskModule
from train_anywhere.training.monitored import monitored
from train_anywhere.training.plan import Plan
from train_anywhere.training.reporting.metrics_csv import CsvLog, renamed
from train_anywhere.training.reporting.progress import Progress
from train_anywhere.training.schedules import learning_rate
from train_anywhere.training.stop import Stop


class MetricsCallback(pl.Callback):
    """Collects the metrics, every few steps and at an epoch's end; writes and shows them.

    The request of any rank to stop travels in the reduction of the metrics, so all ranks know of it at the same step and no step needs a
    collective of its own. A single rank looks at its flag after each step. `TaskMetrics` and `ModuleMetrics` say where metrics come from.

    Attributes:
        native: a task of this project is trained, whose metrics are reduced here.
        csv: metrics.csv, on rank 0 of a run that keeps it.
        metrics: newest value of each metric.
        of_epoch: metrics at the end of the present epoch: of its last steps, and of the validation if any.
        stopping: all ranks have agreed to stop.
        observers: called after steps, validations and checkpoints.
        saving: all ranks have agreed that it is.
    """

    native = False

    def __init__(
        self, config: Config, plan: Plan, stop: Stop, progress: Progress, prints: bool = True
    ) -> None:
        self.config, self.plan, self.stop, self.progress = config, plan, stop, progress
        self.every = config.trainer.log_every_n_steps
        self.csv: CsvLog | None = None
        self.metrics: dict[str, float] = {}
        self.of_epoch: dict[str, float] = {}
        self.observers, self.writes = Observers(), prints and not config.trainer.fast_dev_run
        self.stopping = self.saving = False
        self.received = Received(self._logged)
        self.clock = Clock(plan)
        self._lr: Any = None
        self._units: float | None = None
        self._aside: dict[str, float] = {}
        self._unlogged: dict[str, float] = {}
        self._epoch_ending = self._validated = False

    def resume(self, metrics: dict[str, float]) -> None:
        """Begin with the metrics of the checkpoint."""
        self.metrics = dict(metrics)

    def names(self) -> list[str]:
        """Return the names of the metrics, as far as they are known before they are measured."""
        return []

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """The rate of the last step: an epoch that resumes with its validation is still to be written."""
        checkpoint["lr"] = None if self._lr is None else float(self._lr)

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """See on_save_checkpoint."""
        self._lr = checkpoint.get("lr")

    # --- training -------------------------------------------------------------------------------------------------------

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """A schedule that watches a metric may ask for one of before the resume."""
        known = {name: torch.tensor(value, dtype=torch.float64) for name, value in self.metrics.items()}
        trainer.callback_metrics.update(known)
        self.clock.batch_over()
        heartbeat.enter("step", "data")
        self.progress.begin()

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Remember the learning rate that this step uses."""
        if (
            optimizer is _plain(trainer.optimizers[0]) and optimizer.param_groups
        ):  # else Lightning's own, for none
            self._lr = optimizer.param_groups[0].get("lr")

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """After a batch, and so perhaps after an optimizer step."""
        stepped = (batch_idx + 1) % self.plan.accumulate == 0
        fresh = self._step_end(trainer, pl_module, batch_idx) if stepped else None
        units, self._units = self._units, None
        self.progress.batch(trainer.current_epoch, batch_idx, fresh, units)
        heartbeat.trained_batch(steps_done(trainer))
        self.clock.batch_over()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """What is logged from here on is of the epoch; of one that resumed with its validation, this comes first."""
        self._epoch_ending = True

    def _step_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, batch_idx: int
    ) -> dict[str, float] | None:
        """The metrics, if they are due at this step."""
        trainer.steps_done += 1  # type: ignore[attr-defined]
        step = steps_done(trainer)
        if step >= self.plan.total_steps:
            trainer.should_stop = True  # max_steps may end the run in the middle of an epoch
        last = trainer.should_stop or batch_idx + 1 == self.plan.train_batches
        if not last and step % self.every:
            self._look_at_flag(trainer)
            return None
        fresh = {**self._reduce(trainer, module, "train"), **self._learning_rate(module, step)}
        if last:
            self.of_epoch, self._unlogged, self._epoch_ending = fresh, {}, True
        self._measured(trainer, module, Step(step, trainer.current_epoch, batch_idx + 1, fresh, last=last))
        return fresh

    def _measured(self, trainer: pl.Trainer, module: pl.LightningModule, step: Step) -> None:
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
        """A validation may be long: the ranks agree as often as in training."""
        heartbeat.evaluated_batch()
        if trainer.world_size > 1 and (batch_idx + 1) % self.every == 0:
            self._agree(trainer.strategy.reduce(self._requests(pl_module), reduce_op="sum").tolist())
        self._look_at_flag(trainer)

    on_test_batch_end = on_validation_batch_end

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Training waits."""
        heartbeat.enter("validation")

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Reduce the metrics of the validation."""
        self._validated = True
        self.of_epoch |= self._reduce(trainer, pl_module, "val")

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """What a module has logged in it."""
        self._collect(trainer)
        heartbeat.enter("step", "data")
        self.clock.batch_over()

    def epoch_over(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write one row for the end of the epoch."""
        self._collect(trainer)
        self.of_epoch = self._learning_rate(pl_module, steps_done(trainer)) | self.of_epoch
        for name, value in self._unlogged.items():
            if not {name, f"{name}_step", f"{name}_epoch"} & self.of_epoch.keys():
                self.of_epoch[name] = value
        if not self.native:
            self.metrics |= self.of_epoch
        self._write(trainer, self.of_epoch)
        self.progress.validated(min(trainer.current_epoch, self.plan.max_epochs - 1), self.of_epoch)
        self.observers.after_validation(steps_done(trainer), self.of_epoch)
        self._epoch_ending = False

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Reduce and write the metrics of the test."""
        self._collect(trainer)
        tested = self._tested(trainer, pl_module)
        self.metrics |= tested
        self._write(trainer, tested)

    def _tested(self, trainer: pl.Trainer, module: pl.LightningModule) -> dict[str, float]:
        """Return the metrics of the test."""
        return dict(self._unlogged)

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Nothing is tested yet."""
        self._unlogged = {}

    def judged(self, key: str, monitor: str) -> dict[str, float]:
        """All that was measured in this epoch, in which `monitor` may be missing if nothing was validated.

        Raises:
            ConfigError: there is no such metric; `key` is the one of the configuration that names it.
        """
        return self._unlogged | self.of_epoch

    # --- from Lightning -------------------------------------------------------------------------------------------------

    def _collect(self, trainer: pl.Trainer) -> None:
        """Collect what was logged in the loop that ends and not handed to the loggers."""

    def _logged(self, trainer_logs: bool, trainer: pl.Trainer, values: Mapping[str, float]) -> None:
        """What Lightning, or another callback, hands to the loggers."""
        if not trainer_logs:
            self._aside |= values  # such as LearningRateMonitor's: written with the next row
        elif trainer.validating or self._epoch_ending:
            self.of_epoch |= values
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
            self._agree(trainer.strategy.reduce(self._requests(module), reduce_op="sum").tolist())
        self._look_at_flag(trainer)
        return {}

    def _requests(self, module: pl.LightningModule) -> torch.Tensor:
        """To stop, and to save; and what was measured of the efficiency."""
        requests = [self.stop.requested is not None, self.writes and self.observers.requests_checkpoint()]
        numbers = [*requests, *heartbeat.efficiency.numbers()]
        return torch.tensor(numbers, dtype=torch.float64, device=module.device)

    def _agree(self, requests: list[float]) -> None:
        self.stopping, self.saving = (request > 0 for request in requests[:2])
        heartbeat.efficiency.agree(requests[2:])

    def _look_at_flag(self, trainer: pl.Trainer) -> None:
        """A single rank needs no agreement to stop."""
        if trainer.world_size == 1:
            self.stopping = self.stop.requested is not None
            self.saving = self.writes and self.observers.requests_checkpoint()

    def _write(self, trainer: pl.Trainer, metrics: dict[str, float]) -> None:
        step = steps_done(trainer)
        epoch = trainer.current_epoch + (trainer.state.fn == TrainerFn.FITTING)
        if self.csv:
            self.csv.write(step, epoch, self._aside | metrics)
        self._aside = {}


class TaskMetrics(MetricsCallback):
    """Metrics of a task of this project: sums on each rank, reduced here together with the requests to stop.

    Args:
        task: what is trained.
    """

    native = True

    def __init__(self, task: Task, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.task = task

    def resume(self, metrics: dict[str, float]) -> None:
        """Begin with the metrics of the checkpoint; an epoch that resumes with its validation has those of its training."""
        super().resume(metrics)
        train = self.task.names("train")
        self.of_epoch = {name: value for name, value in metrics.items() if name in train}

    def names(self) -> list[str]:
        """Return the names of all metrics of the task."""
        return self.task.names("train", "val", "test")

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Reduce the metrics of the validation, and show them to schedules and callbacks that watch one of them."""
        super().on_validation_epoch_end(trainer, pl_module)
        known = {n: torch.tensor(v, dtype=torch.float64) for n, v in self.of_epoch.items()}
        trainer.callback_metrics.update(known)

    def _measured(self, trainer: pl.Trainer, module: pl.LightningModule, step: Step) -> None:
        assert isinstance(module, TaskModule)
        if not step.last:
            self._write(trainer, dict(step.metrics))
        self.observers.after_step(replace(step, counted=[module.train_sums.counted()]))

    def _learning_rate(self, module: pl.LightningModule, step: int) -> dict[str, float]:
        assert isinstance(module, TaskModule)
        if isinstance(self.config.schedule, OtherSchedule):
            return super()._learning_rate(module, step)
        return {"lr": learning_rate(self.config, self.plan, step - 1, module.devices)}

    def _reduce(self, trainer: pl.Trainer, module: pl.LightningModule, part: str) -> dict[str, float]:
        """Return metrics over all ranks, and agree to stop: one reduction, one wait for the device."""
        assert isinstance(module, TaskModule)
        running = module.train_sums if part == "train" else module.eval_sums
        own = torch.cat([running.take(module.device), self._requests(module)])
        *sums, to_stop, to_save, whole, waited = trainer.strategy.reduce(own, reduce_op="sum").tolist()
        self._agree([to_stop, to_save, whole, waited])
        fresh = module.task.report(part, sums)
        self._units = module.task.units(sums) if part == "train" else None
        self.metrics |= fresh
        return fresh

    def _tested(self, trainer: pl.Trainer, module: pl.LightningModule) -> dict[str, float]:
        return self._reduce(trainer, module, "test")

    def _write(self, trainer: pl.Trainer, metrics: dict[str, float]) -> None:
        for logger in trainer.loggers:
            if logger is not self.received:
                logger.log_metrics(metrics, step=steps_done(trainer))
                logger.save()
        super()._write(trainer, metrics)


class ModuleMetrics(MetricsCallback):
    """Metrics that a user's module logs by itself: they come from Lightning, by way of `loggers.Received` and `Trainer.collected`."""

    def judged(self, key: str, monitor: str) -> dict[str, float]:
        """Return all that was measured in this epoch.

        Raises:
            ConfigError: a module that was validated has logged no metric of this name.
        """
        known = super().judged(key, monitor)
        # without a validation its metrics are not missed
        trains = not self.plan.val_batches and "val" not in monitor
        if self._validated or trains:
            monitored(self.metrics | known, monitor, key)
        return known

    def _collect(self, trainer: pl.Trainer) -> None:
        collected = renamed(trainer._logger_connector.collected, trainer.is_global_zero)  # type: ignore[attr-defined]
        self._unlogged |= {name: float(value) for name, value in collected.items()}


def _plain(optimizer: Any) -> Any:
    """Torch's own optimizer below Lightning's."""
    return getattr(optimizer, "optimizer", optimizer)
