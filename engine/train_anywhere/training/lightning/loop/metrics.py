"""The metrics of a task of this project, and those that a user's module logs."""

from typing import Any

import lightning.pytorch as pl
import torch

from train_anywhere.config.choices import OtherSchedule
from train_anywhere.features.feature import Step
from train_anywhere.tasks import Task
from train_anywhere.training.early_stopping import monitored_value
from train_anywhere.training.lightning.checkpoint.position import steps_done
from train_anywhere.training.lightning.loop.callbacks import MetricsCallback
from train_anywhere.training.lightning.module import TaskModule
from train_anywhere.training.plan import learning_rate
from train_anywhere.training.reporting.metrics_csv import prefix_reserved_names


class TaskMetrics(MetricsCallback):
    """Metrics of a task of this project: sums on each rank, reduced together with the requests to stop.

    Args:
        task: the task, whose metrics they are.
    """

    native = True

    def __init__(self, task: Task, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.task = task

    def resume(self, metrics: dict[str, float]) -> None:
        """Start with the metrics of the checkpoint; an epoch that resumes with its validation gets the training metrics."""
        super().resume(metrics)
        train = self.task.names("train")
        self.epoch_metrics = {name: value for name, value in metrics.items() if name in train}

    def names(self) -> list[str]:
        """Return the names of all metrics of the task."""
        return self.task.names("train", "val", "test")

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Provide the metrics from before a resume, for schedules that watch one of them, and start the first epoch."""
        _provide(trainer, self.metrics)
        super().on_train_start(trainer, pl_module)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Reduce the metrics of the validation, and provide them to schedules and callbacks that watch one of them."""
        super().on_validation_epoch_end(trainer, pl_module)
        _provide(trainer, self.epoch_metrics)

    def _use_metrics(self, trainer: pl.Trainer, module: pl.LightningModule, step: Step) -> None:
        assert isinstance(module, TaskModule)
        if not step.last:
            self._write(trainer, dict(step.metrics))
        self.observers.after_step(step)

    def _learning_rate(self, module: pl.LightningModule, step: int) -> dict[str, float]:
        assert isinstance(module, TaskModule)
        if isinstance(self.config.schedule, OtherSchedule):
            return super()._learning_rate(module, step)
        return {
            "lr": learning_rate(
                self.config.optimizer, self.config.schedule, self.plan, step - 1, module.devices
            )
        }

    def _reduce(self, trainer: pl.Trainer, module: pl.LightningModule, part: str) -> dict[str, float]:
        """Return metrics over all ranks, and agree to stop: one reduction, one wait for the device."""
        assert isinstance(module, TaskModule)
        running = module.train_sums if part == "train" else module.eval_sums
        requests = self._requests(module)
        own = torch.cat([running.take(module.device), requests])
        reduced = trainer.strategy.reduce(own, reduce_op="sum").tolist()
        sums, agreed = reduced[: -len(requests)], reduced[-len(requests) :]
        self._agree(trainer, agreed)
        fresh = module.task.report(part, sums)
        self._units = module.task.units(sums) if part == "train" else None
        self.metrics |= fresh
        return fresh

    def _test_metrics(self, trainer: pl.Trainer, module: pl.LightningModule) -> dict[str, float]:
        return self._reduce(trainer, module, "test")

    def _write(self, trainer: pl.Trainer, metrics: dict[str, float]) -> None:
        trainer._logger_connector.send(metrics, steps_done(trainer))  # type: ignore[attr-defined]
        super()._write(trainer, metrics)


def _provide(trainer: pl.Trainer, metrics: dict[str, float]) -> None:
    """Let schedules and callbacks watch metrics."""
    trainer.callback_metrics.update({n: torch.tensor(v, dtype=torch.float64) for n, v in metrics.items()})


class ModuleMetrics(MetricsCallback):
    """Metrics that a user's module logs, received from the `Connector`."""

    def monitored_metrics(self, key: str, monitor: str) -> dict[str, float]:
        """Return the metrics of this epoch. Raises ConfigError if the module was validated and has logged no metric of this name."""
        known = super().monitored_metrics(key, monitor)
        # without a validation, its metrics may be missing
        is_training_metric = not self.plan.val_batches and "val" not in monitor
        if self._validated or is_training_metric:
            monitored_value(self.metrics | known, monitor, key)
        return known

    def _collect(self, trainer: pl.Trainer) -> None:
        collected = prefix_reserved_names(trainer._logger_connector.collected, trainer.is_global_zero)  # type: ignore[attr-defined]
        self._unlogged |= {name: float(value) for name, value in collected.items()}
