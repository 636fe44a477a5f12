"""Signals become a flag that the training loop reads: none interrupts a step."""

import signal
import sys
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class Stop:
    """A request to stop: Ctrl-C, USR1 ahead of a time limit, TERM at preemption.

    Attributes:
        requested: name of the first signal that came, or None.
    """

    def __init__(self) -> None:
        self.requested: str | None = None

    def install(self) -> "Stop":
        """Take over the signals of this process; call it from the main thread, before the frameworks start."""
        for number in SIGNALS:
            signal.signal(number, self._on_signal)
        return self

    def take_back(self) -> None:
        """Take over once more what `install` took: a library may have set handlers of its own, without Python."""
        for number in SIGNALS:
            if signal.getsignal(number) == self._on_signal:  # what Python knows
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.requested == "SIGINT":
            raise KeyboardInterrupt  # the second Ctrl-C means now
        if self.requested is None:
            self.requested = signal.Signals(number).name
            print(
                f"\n{self.requested}: finishing this step and saving a checkpoint.",
                file=sys.stderr,
                flush=True,
            )
