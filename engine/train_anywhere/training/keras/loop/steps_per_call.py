"""Choose the number of training steps that one call of the compiled function makes.

A call costs about 0.3 ms in Python and TensorFlow, most of the time of a step of a small network. So a call makes all steps until a result
is needed: a row of metrics, when the ranks also agree to stop, a checkpoint by steps or the end of the epoch. All ranks make the same
calls: decisions by time use the mean over the ranks, which is exchanged together with the metrics.
"""

from collections.abc import Iterable

import keras

LONGEST_S = 0.1
"""Longest time in seconds of a call of several steps: signals, the display and the detection of hangs wait for its end."""

SINGLE_STEP_EVERY_S = 0.5
"""Seconds between calls of a single step, of which the parts can be measured (see `pace.py`)."""

HOOKS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
"""Hooks of Keras callbacks; a callback that overrides one is called at every step."""


class StepsPerCall:
    """The number of steps of each call.

    Args:
        log_every: steps between rows of metrics.
        save_every: steps between checkpoints, if there is such an interval.
        each: whether there is work after every step, so that each call makes one step.
    """

    def __init__(self, log_every: int, save_every: int | None, each: bool) -> None:
        self.each = each
        self._log, self._save = log_every, save_every
        self._step_s = 0.0  # mean over the ranks; 0: not known yet
        self._seconds, self._steps = 0.0, 0
        self._compiles, self._together = True, 0

    def next_count(self, step: int, left: int) -> int:
        """Return the number of steps of the next call, after `step` optimizer steps, with `left` steps left in the epoch or run."""
        if self.each or not self._step_s or self._together * self._step_s >= SINGLE_STEP_EVERY_S:
            self._together = 0
            return 1
        until = [self._log - step % self._log, left, int(LONGEST_S / self._step_s)]
        if self._save:
            until.append(self._save - step % self._save)
        count = max(1, min(until))
        self._together = 0 if count == 1 else self._together + count
        return count

    def expect_compilation(self) -> None:
        """Ignore the time of the next call, because it compiles the step."""
        self._compiles = True

    def add_call(self, seconds: float, steps: int) -> None:
        """Add the time of a finished call, unless it compiled the step."""
        if not self._compiles:
            self._seconds += seconds
            self._steps += steps
        self._compiles = False

    def take_mean_seconds(self) -> float:
        """Return this rank's mean seconds per step since the last call of this method; 0 if no step was measured."""
        mean = self._seconds / self._steps if self._steps else 0.0
        self._seconds, self._steps = 0.0, 0
        return mean

    def set_mean_seconds(self, mean: float) -> None:
        """Set the seconds per step, averaged over all ranks; 0 keeps the last value."""
        self._step_s = mean or self._step_s


def has_batch_hooks(callbacks: Iterable[keras.callbacks.Callback]) -> bool:
    """Return whether a callback overrides one of `HOOKS`, so that it must be called at every step."""
    base = keras.callbacks.Callback
    hooks = ((getattr(c, name), getattr(base, name)) for c in callbacks for name in HOOKS)
    return any(getattr(hook, "__func__", hook) is not original for hook, original in hooks)
