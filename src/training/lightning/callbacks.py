"""What happens around the loop: metrics, display, early stopping, and the agreement of all ranks to stop."""

import math
from typing import Any

import lightning.pytorch as pl
import torch

from src.checkpoints.interval import Interval
from src.config.schema import Config, EarlyStopping
from src.training.lightning.module import Classifier
from src.training.lightning.optim import learning_rate
from src.training.metrics_csv import CsvLog
from src.training.nan_watch import NanWatch
from src.training.plan import Plan
from src.training.progress import Progress
from src.training.stop import Stop


class Reporter(pl.Callback):
    """Reduces the totals over the ranks, every few steps and at an epoch's end; writes and shows the metrics.

    The wish of any rank to stop travels in the same reduction, so all ranks know of it at the same step and
    no step needs an exchange of its own. A single rank looks at its flag after each step.

    Attributes:
        csv: metrics.csv, on rank 0 and where metrics are kept.
        metrics: newest value of each metric.
        of_epoch: metrics at the end of the present epoch: of its last steps, and of the validation if any.
        stopping: all ranks have agreed to stop.
        interval: says on rank 0 when it is time for a checkpoint.
        saving: all ranks have agreed that it is.
    """

    def __init__(
        self, config: Config, plan: Plan, stop: Stop, progress: Progress, speaks: bool = True
    ) -> None:
        self.config, self.plan, self.stop, self.progress = config, plan, stop, progress
        self.every = config.trainer.log_every_n_steps
        self.csv: CsvLog | None = None
        self.metrics: dict[str, float] = {}
        self.of_epoch: dict[str, float] = {}
        self.interval: Interval | None = None
        self.nan = NanWatch(config.trainer.detect_nan, speaks)
        self.stopping = self.saving = False

    def go_on(self, metrics: dict[str, float]) -> None:
        """Begin with the metrics that the checkpoint has, for a run that goes on."""
        self.metrics = dict(metrics)
        self.of_epoch = {name: value for name, value in metrics.items() if name.startswith("train/")}

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """After a batch, and so perhaps after an optimizer step."""
        stepped = (batch_idx + 1) % self.plan.accumulate == 0
        fresh = self._step_end(trainer, pl_module, batch_idx) if stepped else None
        self.progress.batch(trainer.current_epoch, batch_idx, fresh)

    def _step_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, batch_idx: int
    ) -> dict[str, float] | None:
        """Report if it is time to: returns the metrics."""
        step = trainer.global_step
        if step >= self.plan.total_steps:
            trainer.should_stop = True  # where max_steps ends the run in the middle of an epoch
        last = trainer.should_stop or batch_idx + 1 == self.plan.train_batches
        if not last and step % self.every:
            self._look_alone(trainer)
            return None
        lr = learning_rate(self.config, self.plan, step - 1, module.devices)
        fresh = {**self._reduce(trainer, module, "train"), "lr": lr}
        if last:
            self.of_epoch = fresh
        else:
            self._write(trainer, trainer.current_epoch + 1, fresh)
            self.nan.look(step, fresh)
        return fresh

    def on_validation_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """A validation may be long: the ranks agree as often as in training."""
        if trainer.world_size > 1 and (batch_idx + 1) % self.every == 0:
            self._agree(trainer.strategy.reduce(self._wishes(pl_module), reduce_op="sum").tolist())
        self._look_alone(trainer)

    on_test_batch_end = on_validation_batch_end

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Reduce the metrics of the validation."""
        self.of_epoch |= self._reduce(trainer, pl_module, "val")

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write one row for the end of the epoch."""
        self._write(trainer, trainer.current_epoch + 1, self.of_epoch)
        self.progress.validated(trainer.current_epoch, self.of_epoch)
        self.nan.look(trainer.global_step, self.of_epoch)

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Reduce and write the metrics of the test."""
        self._write(trainer, trainer.current_epoch, self._reduce(trainer, pl_module, "test"))

    def _reduce(self, trainer: pl.Trainer, module: pl.LightningModule, part: str) -> dict[str, float]:
        """Metrics over all ranks, and the agreement to stop: one reduction, one wait for the device."""
        assert isinstance(module, Classifier)
        totals = module.train_totals if part == "train" else module.eval_totals
        own = torch.cat([totals.take(module.device), self._wishes(module)])
        sums: torch.Tensor = trainer.strategy.reduce(own, reduce_op="sum")
        loss, right, count, *wishes = sums.tolist()
        self._agree(wishes)
        fresh = {f"{part}/loss": loss / max(1.0, count), f"{part}/acc": right / max(1.0, count)}
        self.metrics |= fresh
        return fresh

    def _wishes(self, module: pl.LightningModule) -> torch.Tensor:
        """To stop, and to save."""
        wishes = [self.stop.requested is not None, self.interval is not None and self.interval.by_time()]
        return torch.tensor(wishes, dtype=torch.float32, device=module.device)

    def _agree(self, wishes: list[float]) -> None:
        self.stopping, self.saving = (wish > 0 for wish in wishes)

    def _look_alone(self, trainer: pl.Trainer) -> None:
        """A single rank needs nobody's agreement."""
        if trainer.world_size == 1:
            self.stopping = self.stop.requested is not None
            self.saving = self.interval is not None and self.interval.by_time()

    def _write(self, trainer: pl.Trainer, epoch: int, metrics: dict[str, float]) -> None:
        if trainer.logger:
            trainer.logger.log_metrics(metrics, step=trainer.global_step)
        if self.csv:
            self.csv.write(trainer.global_step, epoch, metrics)


class EarlyStop(pl.Callback):
    """Ends the training when a metric has not improved for `patience` validations."""

    def __init__(self, rule: EarlyStopping, reporter: Reporter) -> None:
        self.rule, self.reporter = rule, reporter
        self.best, self.waited = math.inf, 0

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Judge the epoch, if it was validated."""
        if "val/loss" not in self.reporter.of_epoch:
            return
        value = self.reporter.of_epoch[self.rule.monitor]
        value *= 1 if self.rule.mode == "min" else -1
        improved = value < self.best - self.rule.min_delta
        self.best, self.waited = (value, 0) if improved else (self.best, self.waited + 1)
        self._end_if_over(trainer)

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """What the next part of the run has to know."""
        checkpoint["early_stop"] = {"best": self.best, "waited": self.waited}

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Take it up again; a run that had stopped early is over."""
        self.best, self.waited = checkpoint["early_stop"]["best"], checkpoint["early_stop"]["waited"]
        self._end_if_over(trainer)

    def _end_if_over(self, trainer: pl.Trainer) -> None:
        if self.rule.patience is not None and self.waited >= max(1, self.rule.patience):
            trainer.should_stop = True
