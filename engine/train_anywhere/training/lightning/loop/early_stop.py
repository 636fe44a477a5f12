"""Callbacks that stop a run early, and that fail one that has trained nothing."""

import math
from typing import Any

import lightning.pytorch as pl

from train_anywhere.config.schema import Trainer
from train_anywhere.errors import ProjectError
from train_anywhere.training.early_stopping import Patience
from train_anywhere.training.lightning.loop.callbacks import MetricsCallback


class EarlyStop(pl.Callback):
    """Callback that ends training when a metric has not improved for `patience` validations."""

    def __init__(self, limits: Trainer, metrics: MetricsCallback) -> None:
        self.limits, self.rule, self.metrics = limits, limits.early_stopping, metrics
        self.patience = Patience()
        self._compared, self._resumed = -1, False  # the step of the newest comparison
        self._sign = 1 if self.rule.mode == "min" else -1

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Compare a validation within an epoch with the best one."""
        if self.metrics.mid_epoch and not trainer.sanity_checking:
            self._compare_metrics(trainer, trainer.current_epoch)

    def compare_epoch(self, trainer: pl.Trainer) -> None:
        """Compare the epoch with the best one after its hooks, if it was validated and not compared yet."""
        if self.rule.patience is not None:
            self.metrics.collect_epoch(trainer)
            self._compare_metrics(trainer, trainer.current_epoch + 1)

    def _compare_metrics(self, trainer: pl.Trainer, epochs: int) -> None:
        """Compare the newest metrics with the best ones, after so many complete `epochs`."""
        if (
            self.rule.patience is None
            or self.rule.monitor is None
            or self._compared == self.metrics.course.steps_done
        ):
            return
        measured = self.metrics.monitored_metrics("trainer.early_stopping.monitor", self.rule.monitor)
        if self.rule.monitor in measured:
            self._compared = self.metrics.course.steps_done
            self.patience.update(measured[self.rule.monitor], self.rule)
            self._end_if_over(trainer, epochs)
            if self.patience.should_stop(self.rule):
                self.metrics.progress.note(self.patience.describe(self.rule))

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Save the best value as a cost (infinity: none yet), and the epochs waited since."""
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
        """Stop a resumed run that had stopped early, unless `trainer.min_epochs` or `min_steps` was raised."""
        if self._resumed:
            self._end_if_over(trainer, trainer.current_epoch)

    def _end_if_over(self, trainer: pl.Trainer, epochs: int) -> None:
        if self.limits.is_too_early(epochs, trainer.global_step):
            self.patience.postpone(self.rule)
        elif self.patience.should_stop(self.rule):
            self.metrics.course.end(trainer)


class TrainingCheck(pl.Callback):
    """Callback that counts batches without a loss, and looks for the first gradient."""

    def __init__(self) -> None:
        self.batches = self.skipped = 0
        self.stepped = self.has_gradient = False

    def state_dict(self) -> dict[str, Any]:
        """Return the counts so far, which a resumed run continues."""
        return {name: getattr(self, name) for name in ("batches", "skipped", "stepped", "has_gradient")}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the counts of the run that is resumed."""
        for name, value in state_dict.items():
            setattr(self, name, value)

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Any
    ) -> None:
        """See whether an optimizer has gradients to use."""
        if not self.has_gradient:
            self.stepped = True
            used = (p for group in optimizer.param_groups for p in group["params"])
            self.has_gradient = any(p.grad is not None for p in used)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the batch, and whether it had a loss: `outputs` is empty without one."""
        self.batches += 1
        self.skipped += not outputs and pl_module.automatic_optimization

    def check(self, trainer: pl.Trainer) -> str:
        """Return a note about what was not trained, or "". Raises ProjectError if no step ran."""
        if not self.batches and not trainer.should_stop:
            raise ProjectError("nothing was trained: no batch reached training_step.")
        skipped = "training_step or the loader returned None"
        if self.batches and self.skipped == self.batches:
            return (
                f"nothing was trained: all {self.batches} batches were skipped ({skipped}); return the loss."
            )
        if not any(optimizer.param_groups for optimizer in trainer.optimizers):
            return "the module has no optimizer, so no weight was changed."
        if self.stepped and not self.has_gradient:
            return (
                "nothing was trained: no parameter of the optimizer ever had a gradient; pass the parameters that the loss depends on to "
                "the optimizer."
            )
        return f"{self.skipped} of {self.batches} batches were skipped: {skipped}." if self.skipped else ""
