"""Profile some training steps of a rank: `trainer.profiler` and `jobs.py profile`.

RUN/profile/<the profiler's files>    traces, which TensorBoard shows
RUN/profile/rank-<N>.json             the slowest operations of that rank's newest profile
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

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
    """An operation in a profile: its name, number of calls, and own milliseconds on the GPU, or on the CPU without one."""

    name: str
    calls: int
    ms: float


class Recording(Protocol):
    """A running profiler of a framework."""

    def step(self) -> None:
        """Mark the end of a training step."""

    def finish(self) -> list[Operation]:
        """Stop, write the traces, and return all operations. Raises OSError."""


@dataclass
class ProfiledSteps:
    """Steps to profile.

    Attributes:
        number: number of the request of `jobs.py profile`; 0 for `trainer.profiler`.
        ranks: the ranks that record them.
        first: the first optimizer step; 0: the next one.
        last: the last step; with `first` 0, the number of steps.
        began: the step after which the profile began.
        recording: the running profiler, on the ranks that record them.
    """

    number: int
    ranks: Sequence[int]
    first: int
    last: int
    began: int | None = None
    recording: Recording | None = None


class StepProfile:
    """The profiles of one rank. All ranks know which steps are profiled: `steps` such as 10-20 on rank 0, and those of requests.

    `begin` starts a profiler, which writes its traces into a folder, under a name for this rank.
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
        self._step: int | None = None

    def request(self, number: int) -> None:
        """Profile the steps of a request next. All ranks call this after the same step."""
        end, path = time.monotonic() + FILE_S, self.run.path / "monitor" / live.PROFILE
        while (asked := read_json(path)).get("number") != number and time.monotonic() < end:
            time.sleep(0.1)
        ranks, count = asked.get("ranks"), asked.get("steps")
        running = any(one.began is not None for one in self._due)
        if not running and isinstance(count, int) and isinstance(ranks, list):
            waiting = [one for one in self._due if not one.number]
            self._due = [*waiting, ProfiledSteps(number, ranks, 0, count)]

    def after_step(self, step: int) -> None:
        """Start or end a profile if it is due after this step, or before the first one."""
        self._step = step
        if not self._due:
            return
        span = self._due[-1]
        if span.recording:
            span.recording.step()
        if span.first == 0:
            span.first, span.last = step + 1, step + span.last
        if step >= span.last:
            self._end()
        elif span.began is None and step + 1 >= span.first:
            span.began = step
            try:
                if self.rank in span.ranks:
                    make_folder(self.run.path / "profile")
                    span.recording = self._begin(self.run.path / "profile", f"rank-{self.rank}")
            except (OSError, RuntimeError) as error:  # the disk, or a profiler of a callback is running
                self._report(f"steps {step + 1}-{span.last} are not profiled: {error}")

    def close(self) -> None:
        """End a profile at the end of training, and report one that had no step."""
        if not self._due:
            return
        span, step = self._due[-1], self._step
        if span.first and self.rank in span.ranks and step is not None and span.began in (None, step):
            why = f"training ended after step {step}"
            self._report(f"steps {span.first}-{span.last} are not profiled: {why}.")
        self._end()

    def _end(self) -> None:
        """Stop the current profile, and write the slowest operations of its steps."""
        span, last, folder = self._due.pop(), self._step, self.run.path / "profile"
        if span.recording is None or span.began is None or last is None:
            return
        first = span.began + 1
        try:
            slowest = sorted(span.recording.finish(), key=lambda one: -one.ms)[:SLOWEST]
            if first > last:  # training ended
                return
            known = {"number": span.number, "rank": self.rank, "steps": (first, last)}
            write(folder / f"rank-{self.rank}.json", known | {"operations": slowest})
            self._report(f"steps {first}-{last} of rank {self.rank} are profiled: {folder}")
        except (OSError, RuntimeError) as error:
            self._report(f"the profile of steps {first}-{last} is not written: {error}")
