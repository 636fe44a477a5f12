"""A loss that is not a number any more is told when it happens: `trainer.detect_nan`.

Looked at where metrics are read anyway, every `trainer.log_every_n_steps` steps and at an epoch's end: no wait for a device.
"""

import sys
from collections.abc import Mapping
from typing import Literal

from src.errors import NotFiniteError
from src.runs.summary import not_finite

ADVICE = (
    "try a lower optimizer.lr, trainer.gradient_clip_val=1.0, or trainer.precision=32 where it is 16-mixed"
)


class NanWatch:
    """Looks at losses; every rank has one, since all know the same metrics.

    Args:
        mode: warn: tell it once; stop: end the run; off: nothing.
        speaks: this rank prints the warning.
    """

    def __init__(self, mode: Literal["warn", "stop", "off"], speaks: bool) -> None:
        self.mode, self.speaks = mode, speaks
        self._told = False

    def look(self, step: int, metrics: Mapping[str, float]) -> None:
        """Judge what was just measured, and reported, at optimizer step `step`.

        Raises:
            NotFiniteError: with mode stop, where a loss is nan or inf.
        """
        bad = not_finite(metrics)
        if self.mode == "off" or not bad or self._told:
            return
        self._told = True
        what = f"{bad} is {metrics[bad]} at step {step}"
        if self.mode == "stop":
            raise NotFiniteError(
                f"{what}, and trainer.detect_nan=stop ends the run; {ADVICE}. Newer checkpoints than the best one may hold it too."
            )
        if self.speaks:
            print(
                f"warning: {what}: the training goes on, and can't recover from that; {ADVICE}.",
                file=sys.stderr,
            )


def judged(metrics: Mapping[str, float], monitor: str) -> float | None:
    """The value that says whether a checkpoint is the best; None where weights that give such a loss must not be it."""
    return None if not_finite(metrics) else metrics.get(monitor)
