"""Profile some training steps of a rank, with the profiler of its framework: `trainer.profiler` and `jobs.py profile`.

RUN/profile/<the profiler's files>    traces, which TensorBoard shows
RUN/profile/rank-<N>.json             the slowest operations of that rank's newest profile
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from train_anywhere.config.limits import span_bounds
from train_anywhere.files.ordinary import make_folder
from train_anywhere.monitor import requests
from train_anywhere.monitor.live import write
from train_anywhere.monitor.ranks import read_json
from train_anywhere.runs.folder import RunDir

SLOWEST = 10
"""Number of operations that are recorded."""

FILE_S = 10.0
"""Seconds for a request to be seen on other nodes: a shared disk may show new files late."""


class Operation(NamedTuple):
    """An operation in a profile: its name, number of calls, and milliseconds in itself, without those that it calls.

    Attributes:
        ms: on the GPU if one is used, else on the CPU.
    """

    name: str
    calls: int
    ms: float


class Recording(Protocol):
    """A running profiler of a framework."""

    def step(self) -> None:
        """Mark the end of a training step."""

    def finish(self) -> list[Operation]:
        """Stop, write the traces, and return all operations. Raises OSError."""


class StepProfile:
    """The profiles of one rank.

    Args:
        run: the run folder.
        rank: number of this rank.
        steps: steps that rank 0 profiles, such as 10-20; None: only when requested.
        begin: starts a profiler, which writes its traces into a folder, under a name for this rank.
        report: prints a line.

    Attributes:
        is_on: whether `after_step` must be called; False for nearly all steps of nearly all runs.
    """

    def __init__(
        self,
        run: RunDir,
        rank: int,
        steps: str | None,
        begin: Callable[[Path, str], Recording],
        report: Callable[[str], None],
    ) -> None:
        self.run, self.rank, self._begin, self._report = run, rank, begin, report
        self._first, self._last = span_bounds(steps) if steps and rank == 0 else (0, 0)
        self.is_on = self._last > 0
        self._recording: Recording | None = None
        self._number = self._began = self._step = 0

    def request(self, number: int) -> None:
        """Profile the steps of a request of `jobs.py profile`, if it names this rank; all ranks call this after the same step."""
        end, asked = time.monotonic() + FILE_S, dict[str, Any]()
        while asked.get("number") != number and time.monotonic() < end:
            asked = read_json(self.run.path / "monitor" / requests.PROFILE)
            if asked.get("number") != number:
                time.sleep(0.1)
        ranks, count = asked.get("ranks"), asked.get("steps")
        if (
            self._recording
            or not isinstance(count, int)
            or not (isinstance(ranks, list) and self.rank in ranks)
        ):
            return
        self._number, self._first, self._last, self.is_on = number, 0, count, True

    def after_step(self, step: int) -> None:
        """Start or end a profile if it is due after this optimizer step."""
        self._step = step
        if self._recording:
            self._recording.step()
            if step >= self._last:
                self.close()
        elif self._first == 0:  # requested: the next steps
            self._last += step
            self._start(step)
        elif step >= self._last:  # resumed after them
            self.is_on = False
        elif step + 1 >= self._first:
            self._start(step)

    def close(self) -> None:
        """End a profile after its last step, or earlier if the training ends."""
        if self._recording:
            self._finish(self._step)

    def _start(self, step: int) -> None:
        self._began = step
        try:
            make_folder(self.run.path / "profile")
            self._recording = self._begin(self.run.path / "profile", f"rank-{self.rank}")
        except (OSError, RuntimeError) as error:  # the disk, or a profiler of a callback is running
            self.is_on = False
            self._report(f"steps {step + 1}-{self._last} are not profiled: {error}")

    def _finish(self, step: int) -> None:
        recording, self._recording, self.is_on = self._recording, None, False
        assert recording
        try:
            slowest = sorted(recording.finish(), key=lambda one: -one.ms)[:SLOWEST]
            content = {
                "number": self._number,
                "rank": self.rank,
                "steps": [self._began + 1, step],
                "operations": slowest,
            }
            write(self.run.path / "profile" / f"rank-{self.rank}.json", content)
        except (OSError, RuntimeError) as error:
            self._report(f"the profile of steps {self._began + 1}-{step} is not written: {error}")
            return
        self._report(
            f"steps {self._began + 1}-{step} of rank {self.rank} are profiled: {self.run.path}/profile"
        )
