"""Early stopping: a run ends when its monitored metric has not improved for a number of validations."""

import math
from dataclasses import dataclass

from train_anywhere.config.schema import EarlyStopping


@dataclass
class Patience:
    """State of early stopping. Checkpoints hold it, so a resumed run continues to count.

    Attributes:
        best: best value of the monitored metric, None before the first finite one.
        waited: validations since then.
    """

    best: float | None = None
    waited: int = 0

    def update(self, value: float, rule: EarlyStopping) -> None:
        """Compare the value of a new validation with the best one; NaN and infinity are never better."""
        gain = 0.0 if self.best is None else (value - self.best) * (1 if rule.mode == "max" else -1)
        if math.isfinite(value) and (self.best is None or gain > rule.min_delta):
            self.best, self.waited = value, 0
        else:
            self.waited += 1

    def postpone(self, rule: EarlyStopping) -> None:
        """Let the run continue until the next worse validation: it has fewer epochs than `trainer.min_epochs`."""
        if rule.patience is not None:
            self.waited = min(self.waited, max(1, rule.patience) - 1)

    def should_stop(self, rule: EarlyStopping) -> bool:
        """Return whether the run ends now: never if `patience` is None; a `patience` of 0 counts as 1."""
        return rule.patience is not None and self.waited >= max(1, rule.patience)

    def describe(self, rule: EarlyStopping) -> str:
        """Return a line that reports why the run stops early."""
        best = "finite" if self.best is None else f"better than {self.best:.4g}"
        gain = (
            f" by more than min_delta={rule.min_delta:g}" if rule.min_delta and self.best is not None else ""
        )
        times = f"{self.waited} validation{'s' if self.waited > 1 else ''}"
        return (
            f"stopped early: {rule.monitor} was not {best}{gain} in {times} (trainer.early_stopping.patience)"
        )
