"""The callback that stops a run early."""

from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import EarlyStopping

from train_anywhere.config.schema import Trainer
from train_anywhere.training.early_stopping import Patience
from train_anywhere.training.lightning.loop.callbacks import MetricsCallback


class EarlyStop(EarlyStopping):
    """Ends training when a metric has not improved for `patience` validations.

    Lightning calls an EarlyStopping after the hooks of an epoch that can log the metric. This one counts as the Keras runs do.
    """

    def __init__(self, limits: Trainer, metrics: MetricsCallback) -> None:
        self.limits, self.rule, self.metrics = limits, limits.early_stopping, metrics
        patience, mode = max(1, self.rule.patience or 1), self.rule.mode or "min"
        super().__init__(str(self.rule.monitor), self.rule.min_delta, patience, mode=mode)
        self.count, self._compared, self._resumed = Patience(), -1, False  # the step of the newest comparison

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
        self.count, self._resumed = Patience(**state_dict), True

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop a resumed run that had stopped early, unless `trainer.min_epochs` or `min_steps` was raised."""
        if self._resumed:
            self._end_if_over(trainer, trainer.current_epoch)

    def _end_if_over(self, trainer: pl.Trainer, epochs: int) -> None:
        if self.limits.is_too_early(epochs, trainer.global_step):
            self.count.postpone(self.rule)
        elif self.count.should_stop(self.rule):
            self.metrics.course.end(trainer)
