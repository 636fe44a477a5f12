"""Report a loss of NaN or infinity when it happens: `trainer.detect_nan`.

Checked when metrics are read anyway, every `trainer.log_every_n_steps` steps and at an epoch's end: no wait for a device.
"""

import sys
from collections.abc import Mapping

from train_anywhere.config.schema import DetectNan
from train_anywhere.errors import NotFiniteError
from train_anywhere.features.feature import Observer, Step
from train_anywhere.runs.summary import NAN_ADVICE, not_finite


class NanWatch(Observer):
    """Looks at losses; every rank has one, since all know the same metrics.

    Args:
        mode: warn: print it once; stop: end the run; off: nothing. replay ends it too, where `features/replay/recompute.py` has not: it
            computes the training steps of tasks again, and nothing else.
        prints: this rank prints the warning.
    """

    def __init__(self, mode: DetectNan, prints: bool) -> None:
        self.mode, self.prints = mode, prints
        self._reported = False

    def after_step(self, step: Step) -> None:
        """Check the metrics of a step; those of an epoch's last one come again after the validation."""
        if not step.last:
            self.after_validation(step.number, step.metrics)

    def after_validation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Check what was just measured, and reported, at optimizer step `step`.

        Raises:
            NotFiniteError: with mode stop or replay, a loss is nan or inf.
        """
        bad = not_finite(metrics)
        if self.mode == "off" or not bad or self._reported:
            return
        self._reported = True
        what = f"{bad} is {metrics[bad]} at step {step}"
        if self.mode in ("stop", "replay"):
            alone = (
                ", which computes nothing but training steps of a task again,"
                if self.mode == "replay"
                else ""
            )
            raise NotFiniteError(
                f"{what}, and trainer.detect_nan={self.mode}{alone} ends the run; {NAN_ADVICE}. "
                "Newer checkpoints than the best one may hold it too."
            )
        if self.prints:
            print(
                f"warning: {what}: training continues, but can't recover from that; {NAN_ADVICE}.",
                file=sys.stderr,
            )
