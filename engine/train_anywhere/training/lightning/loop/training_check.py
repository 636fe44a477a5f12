"""What was trained at all."""

from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl

from train_anywhere.errors import ProjectError


@dataclass
class TrainingCheck:
    """Counts batches without a loss, and looks for the first gradient."""

    batches: int = 0
    skipped: int = 0
    stepped: bool = False
    has_gradient: bool = False

    def look_at(self, optimizer: Any) -> None:
        """See whether an optimizer has gradients to use."""
        if not self.has_gradient:
            self.stepped = True
            used = (p for group in optimizer.param_groups for p in group["params"])
            self.has_gradient = any(p.grad is not None for p in used)

    def describe(self, trainer: pl.Trainer) -> str:
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
