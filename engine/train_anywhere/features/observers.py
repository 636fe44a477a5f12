"""Features that observe the training loop: checkpoints within an epoch, and nan.

`checkpoint.every_n_steps`, `checkpoint.every_n_seconds` and `checkpoint.interval=auto` save within an epoch. `trainer.detect_nan` reports
a loss or ends the run when metrics are read, every `trainer.log_every_n_steps` steps and at the end of an epoch, without a device sync.
"""

import math
import sys
import time
from collections.abc import Callable, Mapping

from train_anywhere.config.schema import Checkpoint, DetectNan
from train_anywhere.errors import NotFiniteError
from train_anywhere.features.feature import Feature, Observer, Rank, Step
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.summary import NAN_ADVICE, find_nonfinite_loss

HOURS_PER_FAILURE = 50_000.0
"""Mean hours of one GPU between failures: 16,384 GPUs failed 419 times in 54 days, The Llama 3 Herd of Models,
https://arxiv.org/abs/2407.21783, section 3.3.4."""

MAX_OVERHEAD = 0.01
"""Largest fraction of the time that training may wait for checkpoints."""

MIN_INTERVAL_S, FIRST_INTERVAL_S = 1.0, 60.0
"""Shortest interval in seconds, however cheap a checkpoint is, and seconds until the first one, whose cost is not measured yet."""


class Interval(Observer):
    """Counter of steps and seconds since the newest checkpoint.

    All ranks must save at the same step. Steps are equal on all of them but seconds are not, so call `requests_checkpoint` on one
    rank and broadcast its result.

    Args:
        ranks: number of devices that train; with more devices, failures are more frequent.
        clock: returns seconds; a monotonic clock, since the time of day may be set back.
    """

    def __init__(self, config: Checkpoint, ranks: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.config, self.ranks, self.clock = config, ranks, clock
        self.cost: float | None = None
        self._saved = clock()

    def next_step(self, step: int) -> int | None:
        """Return the next step after which a checkpoint is due."""
        every = self.config.every_n_steps
        return (step // every + 1) * every if every else None

    def at_step(self, step: int) -> bool:
        """Return that a checkpoint is due."""
        return True

    def requests_checkpoint(self) -> bool:
        """Return whether enough time has passed since the newest checkpoint."""
        return self.clock() - self._saved >= self.seconds

    @property
    def seconds(self) -> float:
        """The interval in seconds. Infinite if checkpoints depend only on steps and epochs."""
        limits = [self.config.every_n_seconds or math.inf]
        if self.config.interval == "auto":
            limits.append(FIRST_INTERVAL_S if self.cost is None else optimal(self.cost, mtbf(self.ranks)))
        return min(limits)

    def after_checkpoint(self, seconds: float) -> None:
        """Restart the interval after a checkpoint for which training waited `seconds`."""
        self._saved = self.clock()
        if math.isfinite(seconds):  # not finite: the wait was not measured
            self.cost = max(0.0, seconds)


def mtbf(devices: int) -> float:
    """Return the mean time between failures of a job, in seconds."""
    return HOURS_PER_FAILURE * 3600 / devices


def optimal(cost: float, mtbf: float) -> float:
    """Return the interval in seconds that loses the least time: sqrt(2 * cost * MTBF), but not less than the limits above.

    With a short interval training waits for checkpoints; with a long one it repeats more steps after a failure. Sources: J. W. Young,
    Communications of the ACM 17 (1974), https://doi.org/10.1145/361147.361115; J. T. Daly, Future Generation Computer Systems 22
    (2006), https://doi.org/10.1016/j.future.2004.11.016, whose further terms matter only if the cost is not small against the MTBF.
    """
    return max(math.sqrt(2 * cost * mtbf), cost / MAX_OVERHEAD, MIN_INTERVAL_S)


class CheckpointInterval(Feature):
    """Save checkpoints at an interval of steps or seconds."""

    def is_on(self) -> bool:
        """Return whether the run writes checkpoints."""
        return not self.config.trainer.fast_dev_run

    def observer(self, rank: Rank) -> Observer:
        """Return the observer that counts steps and seconds since the newest checkpoint."""
        return Interval(self.config.checkpoint, rank.devices)


class NanWatch(Observer):
    """Observer that checks losses. Every rank has one, since all have the same metrics.

    A `mode` of warn prints a warning once, on the rank that has the `run`; stop ends the run; off does nothing.
    """

    def __init__(self, mode: DetectNan, run: RunDir | None) -> None:
        self.mode, self.run = mode, run
        self._reported = False

    def after_step(self, step: Step) -> None:
        """Check the metrics of a step. `after_validation` checks those of an epoch's last step."""
        if not step.last:
            self.after_validation(step.number, step.metrics)

    def after_validation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Check the metrics of step `step`. Raises NotFiniteError if the mode is stop."""
        bad = find_nonfinite_loss(metrics)
        if self.mode == "off" or not bad or self._reported:
            return
        self._reported = True
        what = f"{bad} is {metrics[bad]} at step {step}"
        if self.mode == "stop":
            raise NotFiniteError(
                f"{what}, and trainer.detect_nan=stop ends the run; {NAN_ADVICE}. "
                "Checkpoints newer than the best one may hold such values too."
            )
        if self.run:
            print(f"warning: {what}: training continues, but can't recover; {NAN_ADVICE}.", file=sys.stderr)


class ReportNan(Feature):
    """Report a loss of nan or inf."""

    def observer(self, rank: Rank) -> Observer:
        """Return the observer of losses. Only the first rank prints."""
        return NanWatch(self.config.trainer.detect_nan, rank.run if rank.first_device == 0 else None)
