"""The rule by which checkpoints are kept."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from train_anywhere.checkpoints.info import SavedCheckpoint


@dataclass(frozen=True)
class Retention:
    """The rule by which checkpoints are kept. They are ordered by step, not by time, because clocks jump.

    Attributes:
        mode: whether the best `value` is the smallest or the largest.
        keep_last: number of newest checkpoints to keep.
        keep_every_n_epochs: also keep checkpoints written at the end of every n-th epoch.
    """

    mode: Literal["min", "max"]
    keep_last: int
    keep_every_n_epochs: int | None = None

    def best(self, saved: Iterable[SavedCheckpoint]) -> SavedCheckpoint | None:
        """Return the checkpoint with the best finite value, the newest of equal ones; None if none has a value."""
        sign = 1 if self.mode == "max" else -1
        valued = [s for s in saved if s.value is not None and math.isfinite(s.value)]
        return max(valued, key=lambda s: (sign * (s.value or 0.0), s.step), default=None)

    def reasons(self, saved: Iterable[SavedCheckpoint]) -> dict[Path, list[str]]:
        """Return the folder of each checkpoint to keep, with the reasons for keeping it."""
        ordered = sorted(saved, key=lambda s: s.step)
        best = self.best(ordered)
        found = {s.path: self._reasons(s, ordered[-self.keep_last :], s is best) for s in ordered}
        return {path: why for path, why in found.items() if why}

    def _reasons(self, s: SavedCheckpoint, last: list[SavedCheckpoint], best: bool) -> list[str]:
        n = self.keep_every_n_epochs
        rules = {
            "newest": s is last[-1],
            f"one of the last {self.keep_last}": s in last and self.keep_last > 1,
            f"best ({self.mode})": best,
            f"end of an n-th epoch, n={n}": bool(n and s.batch == 0 and s.epoch and s.epoch % n == 0),
        }
        return [rule for rule, holds in rules.items() if holds]
