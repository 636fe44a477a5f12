"""What happens around the loop: metrics, display, early stopping, and the agreement of all ranks to stop."""

import math
from typing import Any

import lightning.pytorch as pl
import torch

from src import tasks
from src.checkpoints.interval import Interval
from src.config.schema import Config, EarlyStopping
from src.training.early_stopping import Patience
from src.training.lightning.module import Classifier
from src.training.metrics_csv import CsvLog
from src.training.nan_watch import NanWatch
from src.training.plan import Plan
from src.training.progress import Progress
from src.training.schedules import learning_rate
from src.training.stop import Stop


class MetricsCallback(pl.Callback):
    """Reduces the sums over the ranks, every few steps and at an epoch's end; writes and shows the metrics.

    The request of any rank to stop travels in the same reduction, so all ranks know of it at the same step and no
    step needs a collective of its own. A single rank looks at its flag after each step.

    Attributes:
        csv: metrics.csv, on rank 0 of a run that keeps it.
        metrics: newest value of each metric.
        of_epoch: metrics at the end of the present epoch: of its last steps, and of the validation if any.
        stopping: all ranks have agreed to stop.
        interval: says on rank 0 when a checkpoint is due.
        saving: all ranks have agreed that it is.
    """

    def __init__(
        self, config: Config, plan: Plan, stop: Stop, progress: Progress, prints: bool = True
    ) -> None:
        self.config, self.plan, self.stop, self.progress = config, plan, stop, progress
        self.every = config.trainer.log_every_n_steps
        self.csv: CsvLog | None = None
        self.metrics: dict[str, float] = {}
        self.of_epoch: dict[str, float] = {}
        self.interval: Interval | None = None
        self.nan = NanWatch(config.trainer.detect_nan, prints)
        self.stopping = self.saving = False

    def resume(self, metrics: dict[str, float]) -> None:
        """Begin with the metrics of the checkpoint."""
        self.metrics = dict(metrics)
        self.of_epoch = {name: value for name, value in metrics.items() if name in tasks.names("train")}

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
        """The metrics, if they are due at this step."""
        step = trainer.global_step
        if step >= self.plan.total_steps:
            trainer.should_stop = True  # max_steps may end the run in the middle of an epoch
        last = trainer.should_stop or batch_idx + 1 == self.plan.train_batches
        if not last and step % self.every:
            self._look_at_flag(trainer)
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
            self._agree(trainer.strategy.reduce(self._requests(pl_module), reduce_op="sum").tolist())
        self._look_at_flag(trainer)

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
        running = module.train_sums if part == "train" else module.eval_sums
        own = torch.cat([running.take(module.device), self._requests(module)])
        *sums, to_stop, to_save = trainer.strategy.reduce(own, reduce_op="sum").tolist()
        self._agree([to_stop, to_save])
        fresh = tasks.metrics(part, sums)
        self.metrics |= fresh
        return fresh

    def _requests(self, module: pl.LightningModule) -> torch.Tensor:
        """To stop, and to save."""
        requests = [self.stop.requested is not None, self.interval is not None and self.interval.by_time()]
        return torch.tensor(requests, dtype=torch.float32, device=module.device)

    def _agree(self, requests: list[float]) -> None:
        self.stopping, self.saving = (request > 0 for request in requests)

    def _look_at_flag(self, trainer: pl.Trainer) -> None:
        """A single rank needs no agreement to stop."""
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

    def __init__(self, rule: EarlyStopping, metrics: MetricsCallback) -> None:
        self.rule, self.metrics, self.patience = rule, metrics, Patience()
        self._sign = 1 if rule.mode == "min" else -1

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Judge the epoch, if it was validated."""
        if any(name in self.metrics.of_epoch for name in tasks.names("val")):
            self.patience.judge(self.metrics.of_epoch[self.rule.monitor], self.rule)
            self._end_if_over(trainer)

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """What a resumed run has to know; the best value is written as a cost: lower is better, infinity is none yet."""
        best = self.patience.best
        cost = math.inf if best is None else self._sign * best
        checkpoint["early_stop"] = {"best": cost, "waited": self.patience.waited}

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep counting; a run that had stopped early is over."""
        saved = checkpoint["early_stop"]
        best = None if saved["best"] == math.inf else self._sign * saved["best"]
        self.patience = Patience(best, saved["waited"])
        self._end_if_over(trainer)

    def _end_if_over(self, trainer: pl.Trainer) -> None:
        if self.patience.over(self.rule):
            trainer.should_stop = True
