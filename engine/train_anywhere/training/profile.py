"""Profile some training steps of a rank: `trainer.profiler` and `jobs.py profile`.

RUN/profile/<the profiler's files>    traces, which TensorBoard shows
RUN/profile/rank-<N>.json             the slowest operations of that rank's newest profile
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from train_anywhere.config.limits import span_bounds
from train_anywhere.files.atomic import make_folder, read_json
from train_anywhere.monitor import live
from train_anywhere.monitor.live import write
from train_anywhere.runs.folder import RunDir

SLOWEST = 10
"""Number of operations that are recorded."""

FILE_S = 10.0
"""Seconds for a request to be seen on other nodes: a shared disk may show new files late."""


class Operation(NamedTuple):
    """An operation in a profile: its name, number of calls, and own milliseconds.

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


class ProfiledSteps(NamedTuple):
    """Steps to profile.

    Attributes:
        number: number of the request of `jobs.py profile`; 0 for `trainer.profiler`.
        ranks: the ranks that record them.
        first: the first optimizer step; 0: the next one.
        last: the last step; with `first` 0, the number of steps.
    """

    number: int
    ranks: Sequence[int]
    first: int
    last: int


class StepProfile:
    """The profiles of one rank. All ranks know which steps are profiled.

    Args:
        steps: steps that rank 0 profiles, such as 10-20; None: only when requested.
        begin: starts a profiler, which writes its traces into a folder, under a name for this rank.
    """

    def __init__(
        self,
        run: RunDir,
        rank: int,
        steps: str | None,
        begin: Callable[[Path, str], Recording],
        report: Callable[[str], None],
    ) -> None:
        self.run, self.rank, self._begin = run, rank, begin
        self._report = report if rank == 0 else partial(print, flush=True)
        # the last one is next: a request waits for nothing, and `trainer.profiler` waits for requests
        self._due = [ProfiledSteps(0, [0], *span_bounds(steps))] if steps else []
        self._recording: Recording | None = None
        self._began: int | None = None
        self._step: int | None = None

    @property
    def is_on(self) -> bool:
        """True if `after_step` must be called; False for nearly all steps of nearly all runs."""
        return bool(self._due)

    def request(self, number: int) -> None:
        """Profile the steps of a request next. All ranks call this after the same step."""
        end, asked = time.monotonic() + FILE_S, dict[str, Any]()
        while asked.get("number") != number and time.monotonic() < end:
            asked = read_json(self.run.path / "monitor" / live.PROFILE)
            if asked.get("number") != number:
                time.sleep(0.1)
        ranks, count = asked.get("ranks"), asked.get("steps")
        if self._began is None and isinstance(count, int) and isinstance(ranks, list):
            waiting = [one for one in self._due if not one.number]
            self._due = [*waiting, ProfiledSteps(number, ranks, 0, count)]

    def after_step(self, step: int) -> None:
        """Start or end a profile if it is due after this step, or before the first one."""
        self._step = step
        if not self._due:
            return
        if self._recording:
            self._recording.step()
        if self._due[-1].first == 0:
            self._due[-1] = self._due[-1]._replace(first=step + 1, last=step + self._due[-1].last)
        span = self._due[-1]
        if step >= span.last:
            self._end()
        elif self._began is None and step + 1 >= span.first:
            self._began = step
            try:
                if self.rank in span.ranks:
                    make_folder(self.run.path / "profile")
                    self._recording = self._begin(self.run.path / "profile", f"rank-{self.rank}")
            except (OSError, RuntimeError) as error:  # the disk, or a profiler of a callback is running
                self._report(f"steps {step + 1}-{span.last} are not profiled: {error}")

    def close(self) -> None:
        """End a profile at the end of training, and report one that had no step."""
        if not self._due:
            return
        span, step = self._due[-1], self._step
        if span.first and self.rank in span.ranks and step is not None and self._began in (None, step):
            why = f"training ended after step {step}"
            self._report(f"steps {span.first}-{span.last} are not profiled: {why}.")
        self._end()

    def _end(self) -> None:
        """Stop the current profile, and write the slowest operations of its steps."""
        span, recording, began = self._due.pop(), self._recording, self._began
        self._recording = self._began = None
        if recording is None or began is None or self._step is None:
            return
        first, last, folder = began + 1, self._step, self.run.path / "profile"
        try:
            slowest = sorted(recording.finish(), key=lambda one: -one.ms)[:SLOWEST]
            if first > last:  # training ended
                return
            content = {
                "number": span.number,
                "rank": self.rank,
                "steps": (first, last),
                "operations": slowest,
            }
            write(folder / f"rank-{self.rank}.json", content)
            self._report(f"steps {first}-{last} of rank {self.rank} are profiled: {folder}")
        except (OSError, RuntimeError) as error:
            self._report(f"the profile of steps {first}-{last} is not written: {error}")
