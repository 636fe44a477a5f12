"""Early stopping: when a watched metric has not improved for some validations, the run is over."""

import math
from dataclasses import dataclass

from train_anywhere.config.schema import EarlyStopping


@dataclass
class Patience:
    """What early stopping has seen so far; checkpoints hold it, so that a resumed run keeps counting.

    Attributes:
        best: best value of the watched metric, None before the first finite one.
        waited: validations since then.
    """

    best: float | None = None
    waited: int = 0

    def judge(self, value: float, rule: EarlyStopping) -> None:
        """Compare the value of a new validation with the best one; NaN and infinity are never better."""
        gain = 0.0 if self.best is None else (value - self.best) * (1 if rule.mode == "max" else -1)
        if math.isfinite(value) and (self.best is None or gain > rule.min_delta):
            self.best, self.waited = value, 0
        else:
            self.waited += 1

    def over(self, rule: EarlyStopping) -> bool:
        """Whether the run ends now; never without a `patience`, and one of 0 is taken as 1."""
        return rule.patience is not None and self.waited >= max(1, rule.patience)
