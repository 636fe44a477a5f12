"""What ends a run early: a metric that does not improve, `trainer.max_time`, user code."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

from train_anywhere.config.limits import duration_seconds
from train_anywhere.config.schema import EarlyStopping, Trainer
from train_anywhere.config.strict import nearest
from train_anywhere.errors import ConfigError, listed
from train_anywhere.runs.summary import find_nonfinite_loss


@dataclass
class Patience:
    """The `best` value of the monitored metric, None before the first finite one, and the number of validations `waited` since then.

    Checkpoints hold it, so a resumed run continues to count.
    """

    best: float | None = None
    waited: int = 0

    def update(self, value: float, rule: EarlyStopping) -> None:
        """Compare a new validation with the best one. NaN and infinity are never better."""
        gain = 0.0 if self.best is None else (value - self.best) * (1 if rule.mode == "max" else -1)
        if math.isfinite(value) and (self.best is None or gain > rule.min_delta):
            self.best, self.waited = value, 0
        else:
            self.waited += 1

    def postpone(self, rule: EarlyStopping) -> None:
        """Let a run with fewer epochs than `trainer.min_epochs` continue until a worse validation."""
        if rule.patience is not None:
            self.waited = min(self.waited, max(1, rule.patience) - 1)

    def should_stop(self, rule: EarlyStopping) -> bool:
        """Return whether the run ends now. A `patience` of None never ends it, and 0 counts as 1."""
        return rule.patience is not None and self.waited >= max(1, rule.patience)

    def describe(self, rule: EarlyStopping) -> str:
        """Return a line that reports why the run stops early."""
        best = "finite" if self.best is None else f"better than {self.best:.4g}"
        counts = rule.min_delta and self.best is not None
        gain = f" by more than min_delta={rule.min_delta:g}" if counts else ""
        times = f"{self.waited} validation{'s' if self.waited > 1 else ''}"
        return (
            f"stopped early: {rule.monitor} was not {best}{gain} in {times} (trainer.early_stopping.patience)"
        )


def describe_early_end(who: str | None, step: int, total: int) -> str:
    """Return the line about the end; `who` is the class of the callback, if it is known."""
    return f"{who or 'user code'} ended training after step {step} of {total}"


class Timer:
    """A timer that starts with the seconds of earlier attempts, `before`, from the checkpoint."""

    def __init__(self, trainer: Trainer, before: float = 0.0) -> None:
        self.written = None if trainer.fast_dev_run else trainer.max_time
        self.limit = duration_seconds(self.written) if self.written else None
        self.before = before
        self._start: float | None = None

    def start(self) -> None:
        """Start to count this attempt."""
        self._start = time.monotonic()

    def stop(self) -> None:
        """Stop to count: training is over."""
        self.before, self._start = self.seconds, None

    @property
    def seconds(self) -> float:
        """The seconds of training so far, including validations and checkpoints."""
        return self.before if self._start is None else self.before + time.monotonic() - self._start

    @property
    def is_over(self) -> bool:
        """Whether training has reached the limit. False without one, before training, and after it."""
        return self.limit is not None and self._start is not None and self.seconds >= self.limit

    @property
    def was_over(self) -> bool:
        """Whether earlier attempts have reached the limit. All ranks have the same."""
        return self.limit is not None and self.before >= self.limit

    def end(self, step: int) -> str:
        """Count the limit as reached, and return the line that says why training ends.

        With several ranks the clock of another one may have reached it first; a resumed run must not train the difference.
        """
        if self.limit is not None:
            self.before += max(0.0, self.limit - self.seconds)
        return f"stopped early: {self.seconds:.0f} s of training are over at step {step} (trainer.max_time={self.written})"


def monitored_value(metrics: Mapping[str, float], monitor: str | None, key: str) -> float:
    """Return the metric `monitor`, which the configuration's `key` names. Raises ConfigError: the metric was not measured."""
    if monitor in metrics:
        return metrics[str(monitor)]
    known = [name for name in metrics if name != "lr"]
    near = f". Did you mean '{found}'?" if (found := nearest(str(monitor), known)) else ""
    raise ConfigError(f"{key}={monitor} was not measured{near or '; ' + listed(known) + ' were.'}")


def checkpoint_score(metrics: Mapping[str, float], monitor: str) -> float | None:
    """Return the value of the metric `monitor`. None if a loss is NaN or infinite."""
    return None if find_nonfinite_loss(metrics) else metrics.get(monitor)
