"""Check that the steps of a run changed something. Lightning completes a run that trained nothing; here it has failed."""

from typing import Any

import lightning.pytorch as pl
import torch

from train_anywhere.errors import ProjectError


class TrainingCheck(pl.Callback):
    """Count batches without a loss, and look for the first gradient that an optimizer uses."""

    def __init__(self) -> None:
        self.batches = self.skipped = 0
        self.stepped = self.has_gradient = False

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """An optimizer is about to use the gradients."""
        if not self.has_gradient:
            self.stepped = True
            used = (p for group in optimizer.param_groups for p in group["params"])
            self.has_gradient = any(p.grad is not None for p in used)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """`outputs` is empty after a batch without a loss."""
        self.batches += 1
        self.skipped += not outputs and pl_module.automatic_optimization

    def judge(self, trainer: pl.Trainer) -> str:
        """Return a note about skipped batches, if any, after a training that went to its end.

        Raises:
            ProjectError: nothing was trained.
        """
        if not self.batches and not trainer.should_stop:
            raise ProjectError("nothing was trained: no batch reached training_step.")
        skipped = "training_step returned None for them, or the loader gave None"
        if self.batches and self.skipped == self.batches:
            raise ProjectError(
                f"nothing was trained: all {self.batches} batches were skipped ({skipped}); return the loss."
            )
        if not any(optimizer.param_groups for optimizer in trainer.optimizers):
            return "the module has no optimizer: no weight was changed."
        if self.stepped and not self.has_gradient:
            raise ProjectError(
                "nothing was trained: no parameter of the optimizer ever had a gradient; give the optimizer the parameters that the loss "
                "depends on."
            )
        return f"{self.skipped} of {self.batches} batches were skipped: {skipped}." if self.skipped else ""
