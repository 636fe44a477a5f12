"""The process of one rank: what a training or a program needs besides the configuration, and its signals.

A signal only sets a flag, which the training loop reads, so that none interrupts a step.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType

from train_anywhere.distributed.topology import Topology
from train_anywhere.monitor.heartbeat import Heartbeat
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.recorder import RunRecorder

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class TrainingStopped(Exception):
    """A signal has ended training, and the state is saved."""


class Stop:
    """A request to stop: Ctrl-C, USR1 before a time limit, TERM at preemption.

    Attributes:
        requested: name of the first signal received, or None.
        received: the signals, with the seconds of this machine's monotonic clock at which each came first.
        reaction: what is printed when it arrives.
        watcher: process that passes a signal on to all ranks, which do not agree to stop by themselves; None if there is none.
    """

    def __init__(self) -> None:
        self.requested: str | None = None
        self.received: dict[str, float] = {}
        self.reaction = "finishing this step and saving a checkpoint."
        self.watcher: int | None = None

    def install(self) -> "Stop":
        """Handle the signals, in the main thread before the frameworks start."""
        for number in SIGNALS:
            signal.signal(number, self._on_signal)
        return self

    def reinstall(self) -> None:
        """Install the handlers again, which a C library may have replaced."""
        for number in SIGNALS:
            if signal.getsignal(number) == self._on_signal:  # as Python believes
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.requested == "SIGINT":
            raise KeyboardInterrupt  # a second Ctrl-C stops at once
        self.received.setdefault(signal.Signals(number).name, time.monotonic())
        if self.requested is None:
            self.requested = signal.Signals(number).name
            name = "Ctrl-C" if self.requested == "SIGINT" else self.requested
            print(f"\n{name}: {self.reaction}", file=sys.stderr, flush=True)
            # Ctrl-C comes from the watcher, and a second one would stop at once
            if self.watcher and number != signal.SIGINT and os.getppid() == self.watcher:
                os.kill(self.watcher, number)


@dataclass(frozen=True)
class RankProcess:
    """The process of one rank of a run.

    Attributes:
        stop: flag set by a signal; training then ends after the current step, with a checkpoint.
        recorder: writes run.json; None on other ranks than 0.
        heartbeat: reports the state of this rank to the monitor process of the node; the default is invisible to it.
        disconnect: called after a failure was reported: other ranks end when they lose the connection to this one.
    """

    run: RunDir
    topology: Topology
    stop: Stop
    recorder: RunRecorder | None = None
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    disconnect: list[Callable[[], None]] = field(default_factory=list)
