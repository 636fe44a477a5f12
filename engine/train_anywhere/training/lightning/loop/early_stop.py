"""Early stopping as a callback: stop when a metric has not improved for some validations."""

import math
from typing import Any

import lightning.pytorch as pl

from train_anywhere.config.schema import EarlyStopping
from train_anywhere.training.early_stopping import Patience
from train_anywhere.training.lightning.checkpoint.position import steps_done
from train_anywhere.training.lightning.loop.callbacks import MetricsCallback


class EarlyStop(pl.Callback):
    """Callback that ends training when a metric has not improved for `patience` validations."""

    def __init__(self, rule: EarlyStopping, metrics: MetricsCallback, min_epochs: int) -> None:
        self.rule, self.metrics, self.min_epochs, self.patience = rule, metrics, min_epochs, Patience()
        self._compared, self._resumed = -1, False  # the step of the newest comparison
        self._sign = 1 if rule.mode == "min" else -1

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Compare a validation within an epoch with the best one."""
        if trainer.fit_loop.epoch_loop.mid_epoch:  # type: ignore[attr-defined]
            self._compare(trainer, trainer.current_epoch)

    def epoch_over(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Compare the epoch with the best one, if it was validated; a validation at which the run ended early is compared already."""
        self._compare(trainer, trainer.current_epoch + 1)

    def _compare(self, trainer: pl.Trainer, epochs: int) -> None:
        """Compare the newest metrics with the best ones, after so many complete `epochs`."""
        if self.rule.patience is None or self.rule.monitor is None or self._compared == steps_done(trainer):
            return
        measured = self.metrics.monitored_metrics("trainer.early_stopping.monitor", self.rule.monitor)
        if self.rule.monitor in measured:
            self._compared = steps_done(trainer)
            self.patience.update(measured[self.rule.monitor], self.rule)
            self._end_if_over(trainer, epochs)
            if self.patience.should_stop(self.rule):
                self.metrics.progress.note(self.patience.describe(self.rule))

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Save the best value, as a cost (lower is better; infinity: no value yet), and the epochs waited since."""
        best = self.patience.best
        cost = math.inf if best is None else self._sign * best
        checkpoint["early_stop"] = {"best": cost, "waited": self.patience.waited}

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Restore the count."""
        saved = checkpoint["early_stop"]
        best = None if saved["best"] == math.inf else self._sign * saved["best"]
        self.patience, self._resumed = Patience(best, saved["waited"]), True

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop a resumed run that had stopped early, unless `trainer.min_epochs` was raised."""
        if self._resumed:
            self._end_if_over(trainer, trainer.current_epoch)

    def _end_if_over(self, trainer: pl.Trainer, epochs: int) -> None:
        if epochs < self.min_epochs:
            self.patience.postpone(self.rule)
        elif self.patience.should_stop(self.rule):
            trainer.should_stop = True
