"""Report a loss of NaN or infinity when it is measured, or end the run: `trainer.detect_nan`.

The check runs only when metrics are read, every `trainer.log_every_n_steps` steps and at the end of an epoch, so it adds no device sync.
"""

import sys
from collections.abc import Mapping

from train_anywhere.config.schema import DetectNan
from train_anywhere.errors import NotFiniteError
from train_anywhere.features.feature import Feature, Observer, Rank, Step
from train_anywhere.monitor.live import record_event
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.summary import NAN_ADVICE, find_nonfinite_loss


class NanWatch(Observer):
    """Observer that checks losses; every rank has one, since all have the same metrics.

    Args:
        mode: warn: print a warning once; stop: end the run; off: do nothing.
        run: the run folder, on the rank that prints the warning.
    """

    def __init__(self, mode: DetectNan, run: RunDir | None) -> None:
        self.mode, self.run = mode, run
        self._reported = False

    def after_step(self, step: Step) -> None:
        """Check the metrics of a step; `after_validation` checks those of an epoch's last step."""
        if not step.last:
            self.after_validation(step.number, step.metrics)

    def after_validation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Check the metrics of optimizer step `step`.

        Raises:
            NotFiniteError: a loss is nan or inf, and the mode is stop.
        """
        bad = find_nonfinite_loss(metrics)
        if self.mode == "off" or not bad or self._reported:
            return
        self._reported = True
        what = f"{bad} is {metrics[bad]} at step {step}"
        if self.run:
            record_event(self.run, "nan", what)
        if self.mode == "stop":
            raise NotFiniteError(
                f"{what}, and trainer.detect_nan=stop ends the run; {NAN_ADVICE}. "
                "Checkpoints newer than the best one may hold such values too."
            )
        if self.run:
            print(f"warning: {what}: training continues, but can't recover; {NAN_ADVICE}.", file=sys.stderr)


class ReportNan(Feature):
    """Report a loss of nan or inf."""

    name = "nan_watch"

    def is_on(self) -> bool:
        """Return whether `trainer.detect_nan` is not off."""
        return self.config.trainer.detect_nan != "off"

    def observer(self, rank: Rank) -> Observer:
        """Return the observer of losses; only the first rank prints."""
        return NanWatch(self.config.trainer.detect_nan, rank.run if rank.first_device == 0 else None)
