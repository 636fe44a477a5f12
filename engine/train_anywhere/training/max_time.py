"""The training time of a run, over all its attempts, and its limit `trainer.max_time`."""

import time

from train_anywhere.config.limits import duration_seconds
from train_anywhere.config.schema import Trainer


class Timer:
    """A timer that starts with the time of earlier attempts, which the checkpoint holds.

    Attributes:
        before: seconds of training to add to those of this attempt.
    """

    def __init__(self, trainer: Trainer, before: float = 0.0) -> None:
        self.written = None if trainer.fast_dev_run else trainer.max_time
        self.limit = duration_seconds(self.written) if self.written else None
        self.before = before
        self._start: float | None = None
        self._end: float | None = None

    def start(self) -> None:
        """Start to count this attempt."""
        self._start = time.monotonic()

    def stop(self) -> None:
        """Stop to count: training is over."""
        self._end = time.monotonic()

    @property
    def seconds(self) -> float:
        """The seconds of training so far, including validations and checkpoints."""
        if self._start is None:
            return self.before
        return self.before + (self._end or time.monotonic()) - self._start

    @property
    def is_over(self) -> bool:
        """Whether training has reached the limit; never without one, nor after training."""
        return self.limit is not None and self._end is None and self.seconds >= self.limit

    @property
    def was_over(self) -> bool:
        """Whether earlier attempts have reached the limit; the same on all ranks."""
        return self.limit is not None and self.before >= self.limit

    def end(self, step: int) -> str:
        """Count the limit as reached, and return the line that says why training ends after an optimizer step.

        With several ranks the clock of another one may have reached it first; a resumed run must not train the difference.
        """
        if self.limit is not None:
            self.before += max(0.0, self.limit - self.seconds)
        return f"stopped early: {self.seconds:.0f} s of training are over at step {step} (trainer.max_time={self.written})"
