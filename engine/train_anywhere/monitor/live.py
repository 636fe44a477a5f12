"""RUN/monitor/live.json, events, and the time in each section.

The same folder has requests of `jobs.py`, which that thread or the monitor of a node reads:

save.json     an id: rank 0 requests a checkpoint; saved.json has the id and the step of that checkpoint
profile.json  a number, ranks and steps: these ranks profile the next steps
debug.json    an id: the monitor of each node writes debug-<host>.json, with the id and the stacks of its ranks

No request waits if the file is missing, holds no id, or holds one that was answered before. profile/rank-<N>.json in the run folder has
the slowest operations of the profiled steps.
"""

import os
import statistics
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train_anywhere.files.atomic import dumps, read_json, write_with_folder
from train_anywhere.monitor.heartbeat import Heartbeat
from train_anywhere.monitor.ranks import mappings, short
from train_anywhere.runs.attempts import STARTED, hosts, running_job
from train_anywhere.runs.folder import RunDir

EVERY_S, LONGEST_REST_S, REST_FACTOR = 2.0, 60.0, 1000
"""Shortest and longest seconds between two updates, the latter on a very slow disk: after an update the thread rests this many times its
duration, so that writing takes at most 0.1 % of the time."""

PATIENCE_S = 2.0
"""Longest wait in seconds for the last update at the end of a training: a disk may hang."""


class Live:
    """Thread that updates the file, at no cost for the training thread. If a write fails, the next update tries again.

    Args:
        describe: returns the content of the file except job and time; called by the thread.
        moved: returns when the training last changed, in seconds of `time.monotonic`.
        poll: called by the thread every `EVERY_S`, also while it rests; it should cost next to nothing.
    """

    def __init__(
        self,
        run: Path,
        describe: Callable[[], Mapping[str, Any]],
        moved: Callable[[], float],
        environ: Mapping[str, str] = os.environ,
        poll: Callable[[], None] = lambda: None,
    ) -> None:
        self.path = run / "monitor" / "live.json"
        self._describe, self._moved, self._job = describe, moved, running_job(environ)
        self._poll = poll
        self._written: Mapping[str, Any] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="live", daemon=True)

    def start(self) -> None:
        """Write the file for the first time, in the thread."""
        self._thread.start()

    def close(self) -> None:
        """Write the final state, without waiting for a disk that hangs."""
        self._over.set()
        self._thread.join(PATIENCE_S)

    def _run(self) -> None:
        rest, due = 0.0, time.monotonic()
        while not self._over.wait(min(rest, EVERY_S)):
            self._poll()
            if time.monotonic() >= due:
                rest = min(max(EVERY_S, REST_FACTOR * self._update()), LONGEST_REST_S)
                due = time.monotonic() + rest
        self._update()

    def _update(self) -> float:
        """Write the file if its content has changed. Return the seconds this took."""
        began = time.perf_counter()
        content = self._describe()
        if content != self._written:
            since = time.time() - (time.monotonic() - self._moved())
            with suppress(OSError):
                write(self.path, {"time": round(since, 1), "attempt": self._job, **content})
                self._written = content
        return time.perf_counter() - began


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Replace the file atomically without a flush, and make its folder. Raises OSError."""
    write_with_folder(path, dumps(dict(content)), flush=False)


class Times:
    """Callable that returns the seconds in each section of `monitor/heartbeat.py`.

    `before` is the time of the job before this process started. `data` is the part of `step` spent waiting for the next batch. `slow`
    is the part of `step` by which the slowest rank, whose pace all ranks follow, is slower than the median one. `first` is the part for
    the first batch, and `silent` the time since the last sign of progress.
    """

    def __init__(self, run: RunDir, heartbeat: Heartbeat, environ: Mapping[str, str] = os.environ) -> None:
        self.run, self.heartbeat = run, heartbeat
        began = environ.get(STARTED, "")
        self.before = max(0.0, time.time() - int(began)) if began.isdecimal() else 0.0
        self.hosts = {short(host) for host in hosts(environ)}
        # not at the start, when the files are those of an earlier attempt
        self._slow, self._read_at = 0.0, time.monotonic()

    def __call__(self) -> dict[str, float]:
        """Return the seconds so far, by name."""
        if time.monotonic() - self._read_at > 60:  # a large job has many such files
            self._slow, self._read_at = slowest_rank_wait(self.run, self.hosts), time.monotonic()
        silent = time.monotonic() - self.heartbeat.beat
        own = {"slow": self._slow, "first": self.heartbeat.first, "silent": silent}
        return {"before": self.before, **self.heartbeat.spent(), **own}


def slowest_rank_wait(run: RunDir, nodes: Collection[str]) -> float:
    """Return by how many seconds the slowest rank's work exceeds the median's.

    It is 0 for one rank. `nodes` are short names of this attempt's nodes: files of an earlier attempt's others are ignored.
    """
    found = (read_json(path) for path in run.monitor.glob("ranks-*.json"))
    files = [content for content in found if short(str(content.get("host"))) in nodes]
    ranks = [rank for content in files for rank in mappings(content.get("ranks"))]
    work = [rank["own"] - rank["data"] for rank in ranks if {"own", "data"} <= rank.keys()]
    return max(work) - statistics.median_low(work) if len(work) > 1 else 0.0


@dataclass(frozen=True)
class Profile:
    """The newest profile of a rank: name, number of calls and milliseconds of the slowest `operations`.

    `number` is that of the request of `jobs.py profile`; 0 for `trainer.profiler`.
    """

    rank: int
    number: int
    first: int
    last: int
    operations: tuple[tuple[str, int, float], ...]


def read_profiles(run: RunDir) -> list[Profile]:
    """Return the profiles of a run by rank, as far as they can be read."""
    found = []
    for content in map(read_json, (run.path / "profile").glob("rank-*.json")):
        with suppress(KeyError, TypeError, ValueError):
            operations = tuple((str(name), int(n), float(ms)) for name, n, ms in content["operations"])
            rank, number, first, last = map(int, (content["rank"], content["number"], *content["steps"]))
            found.append(Profile(rank, number, first, last, operations))
    return sorted(found, key=lambda one: one.rank)


def operation_rows(profile: Profile) -> list[tuple[str, str, str]]:
    """Return the milliseconds per step, the calls and the name of each operation, for a table."""
    steps = max(1, profile.last - profile.first + 1)
    return [(f"{ms / steps:.3f}", str(calls), name) for name, calls, ms in profile.operations]


SAVE, SAVED, DEBUG, PROFILE = "save.json", "saved.json", "debug.json", "profile.json"

MAX_NUMBER = 1 << 15
"""Limit of the number of a request to profile, which the ranks exchange as a float of any type."""


class Requests:
    """The requests to one training, on rank 0; `run` is None on other ranks, and for a run that writes nothing.

    Attributes:
        save: id of a request that waits for a checkpoint; empty if there is none.
        profile: number of a request to profile steps, of which the ranks do not know yet; 0 if there is none.
    """

    def __init__(self, run: Path | None) -> None:
        self._folder = run and run / "monitor"
        self.save = self._answered = ""
        self.profile = self._profiled = 0

    def poll(self) -> None:
        """Read the requests. A thread calls it every few seconds."""
        if self._folder is None:
            return
        if (asked := read_id(self._folder / SAVE)) not in ("", self.save, self._answered):
            if asked == read_id(self._folder / SAVED):  # answered before the run was resumed
                self._answered = asked
            else:
                self.save = asked
        number = read_json(self._folder / PROFILE).get("number")
        if isinstance(number, int) and 0 < number < MAX_NUMBER and number != self._profiled:
            self._profiled = number
            # a killed command leaves its request to the next attempt of the run
            if all(one.number != number for one in read_profiles(RunDir(self._folder.parent))):
                self.profile = number

    def saved(self, step: int) -> None:
        """Answer that a checkpoint of this step is written. The training thread calls it."""
        if self._folder and (asked := self.save):
            self._answered, self.save = asked, ""
            with suppress(OSError):  # the command then reports that it got no answer
                write(self._folder / SAVED, {"id": asked, "step": step})


def read_id(path: Path) -> str:
    """Return the id in a request or an answer, or ""."""
    found = read_json(path).get("id")
    return found if isinstance(found, str) else ""


def withdraw(path: Path, sent: Mapping[str, Any]) -> None:
    """Empty a request with this content, unless another one has replaced it."""
    if read_json(path) == sent:
        with suppress(OSError):
            write(path, {})
