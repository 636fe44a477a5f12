"""How many steps one call of the compiled training makes.

Each call costs Python and TensorFlow some 0.3 ms, which for a small network is most of a step. So a call makes as many steps as there
are until something is due that needs their result: a row of metrics, where the ranks also agree to stop, a checkpoint by steps, the end
of the epoch. All ranks make the same calls: what is decided by time is decided by the mean over the ranks, which they learn where they
reduce their metrics anyway.
"""

from collections.abc import Iterable

import keras

from train_anywhere.config.schema import Config

LONGEST_S = 0.1
"""No call of several steps takes longer: a signal, the display and the watch of hangs wait for its end, and with steps of tens of
milliseconds there is nothing left to gain."""

ALONE_S = 0.5
"""As often a step is called alone, so that its parts can be measured (see `pace.py`)."""

HOOKS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
"""Of Keras' callbacks; one that has written any of them is called at every step."""


class Calls:
    """Decides it from one call to the next.

    Args:
        each: something has to be done at every step, so each call makes one.
    """

    def __init__(self, config: Config, each: bool) -> None:
        self.each = each
        self._log, self._save = config.trainer.log_every_n_steps, config.checkpoint.every_n_steps
        self._step_s = 0.0  # mean over the ranks; 0: not known yet
        self._seconds, self._steps = 0.0, 0
        self._first, self._together = True, 0

    def next(self, step: int, left: int) -> int:
        """Steps of the next call.

        Args:
            step: optimizer steps done.
            left: steps that are left of this epoch, or of the run.
        """
        if self.each or not self._step_s or self._together * self._step_s >= ALONE_S:
            self._together = 0
            return 1
        until = [self._log - step % self._log, left, int(LONGEST_S / self._step_s)]
        if self._save:
            until.append(self._save - step % self._save)
        count = max(1, min(until))
        self._together = 0 if count == 1 else self._together + count
        return count

    def compiles(self) -> None:
        """The next call is one that compiles."""
        self._first = True

    def took(self, seconds: float, steps: int) -> None:
        """A call is done. The first one compiles, and says nothing of the others."""
        if not self._first:
            self._seconds += seconds
            self._steps += steps
        self._first = False

    def number(self) -> float:
        """Of this rank, to be averaged over all: seconds of a step since the last time; 0: there was none."""
        mean = self._seconds / self._steps if self._steps else 0.0
        self._seconds, self._steps = 0.0, 0
        return mean

    def agree(self, mean: float) -> None:
        """What all ranks have averaged."""
        self._step_s = mean or self._step_s


def look_at_each(callbacks: Iterable[keras.callbacks.Callback]) -> bool:
    """Whether one of them wants to be called at every step."""
    base = keras.callbacks.Callback
    hooks = ((getattr(c, name), getattr(base, name)) for c in callbacks for name in HOOKS)
    return any(getattr(hook, "__func__", hook) is not unwritten for hook, unwritten in hooks)
