"""Check that a run has trained something: Lightning would complete a run without any training, here it fails."""

from typing import Any

import lightning.pytorch as pl
import torch

from train_anywhere.errors import ProjectError


class TrainingCheck(pl.Callback):
    """Callback that counts batches without a loss, and looks for the first gradient that an optimizer uses."""

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
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer
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
        """Return a note about skipped batches or a missing optimizer, or "", when training is complete.

        Raises:
            ProjectError: nothing was trained.
        """
        if not self.batches and not trainer.should_stop:
            raise ProjectError("nothing was trained: no batch reached training_step.")
        skipped = "training_step or the loader returned None"
        if self.batches and self.skipped == self.batches:
            raise ProjectError(
                f"nothing was trained: all {self.batches} batches were skipped ({skipped}); return the loss."
            )
        if not any(optimizer.param_groups for optimizer in trainer.optimizers):
            return "the module has no optimizer, so no weight was changed."
        if self.stepped and not self.has_gradient:
            raise ProjectError(
                "nothing was trained: no parameter of the optimizer ever had a gradient; pass the parameters that the loss depends on to "
                "the optimizer."
            )
        return f"{self.skipped} of {self.batches} batches were skipped: {skipped}." if self.skipped else ""
