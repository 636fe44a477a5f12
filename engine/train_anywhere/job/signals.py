"""The signals that a supervisor gets, and what its children do at its end."""

import ctypes
import os
import select
import signal
import time
from contextlib import suppress

STOPS = {"SIGUSR1": "USR1", "SIGTERM": "TERM", "SIGINT": "Ctrl-C", "INT": "Ctrl-C"}
"""Names of signals in messages, if they are other ones."""


class StoppedAtStart(Exception):
    """A signal came while the ranks were being started."""


class Signals:
    """The signals that request a stop, in the order of their arrival.

    Args:
        pipe: where their names are read, one per line; None: `handle` is the handler of this process.
    """

    def __init__(self, pipe: int | None = None) -> None:
        self.requested, self.requested_at = "", 0.0
        self._pipe, self._new, self._rest = pipe, list[str](), ""

    def handle(self, number: int, frame: object = None) -> None:
        """Note a signal that this process got."""
        self.note(signal.Signals(number).name)

    def note(self, name: str) -> None:
        """Note a signal that something else has reported."""
        self._new.append(name)
        if not self.requested:
            self.requested, self.requested_at = STOPS.get(name, name), time.monotonic()

    def wait(self, seconds: float) -> list[str]:
        """Wait for some seconds, and return the names of new signals."""
        if self._pipe is None:
            time.sleep(seconds if not self._new else 0)
        elif select.select([self._pipe], [], [], seconds)[0]:
            *names, self._rest = (self._rest + os.read(self._pipe, 4096).decode()).split("\n")
            for name in names:
                self.note(name)
        new, self._new = self._new, []
        return new


def end_with_parent() -> None:
    """Let Linux kill this process when its parent ends: option PR_SET_PDEATHSIG of prctl(2)."""
    with suppress(AttributeError):  # a Mac
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
