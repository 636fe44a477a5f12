"""Print the logs of jobs, and follow them while they run."""

import codecs
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from train_anywhere.errors import SubmitError, listed
from train_anywhere.slurm.scheduler.queue import poll_active
from train_anywhere.slurm.status import job_end
from train_anywhere.slurm.status.find_runs import RunEntry, read_state

POLL_S, ASK_S = 0.5, 5.0
"""Seconds between two reads of a log, and between two questions to the scheduler."""


def show(run: RunEntry, heading: bool) -> None:
    """Print output and errors of the newest job of a run. Raises SubmitError without a readable log."""
    found = run.logs()
    if not found:
        raise SubmitError(no_log_message(run))
    if reason := job_end.explain_newest(run):
        print(reason, file=sys.stderr)
    for path in found:
        try:
            with open(path, encoding="utf-8", errors="replace", newline="\n") as file:
                if heading or (len(found) > 1 and path.stat().st_size):
                    print(f"==> {path} <==")
                shutil.copyfileobj(file, sys.stdout)
        except FileNotFoundError:
            continue  # removed a moment ago
        except OSError as error:
            if error.filename is None:  # an error of stdout, not of the log
                raise
            raise SubmitError(f"{path} can't be read: {error.strerror}.") from None


def follow(found: Sequence[RunEntry]) -> None:
    """Print the logs of runs as they grow, until all of their jobs have ended.

    Raises SubmitError: all jobs have ended and there is no log. Raises SchedulerError: the scheduler did not answer for a long time.
    """
    tails, jobs = dict[Path, Tail](), dict[str, list[str]]()
    for run in found:
        jobs.setdefault(run.scheduler or "", []).extend(run.job_ids)
    here = [run for run in found if not run.scheduler]
    looks = [poll_active(kind, job_ids) for kind, job_ids in jobs.items()]
    queried, active = float("-inf"), True
    while active:
        if time.monotonic() - queried >= ASK_S:
            active = any(map(next, looks))
            active |= any(read_state(run)[0] in ("starting", "running") for run in here)
            queried = time.monotonic()
        for run in found:
            for path in run.logs():
                tail = tails.setdefault(path, Tail(path, f"[{run.folder.id}] " if len(found) > 1 else ""))
                sys.stdout.write(tail.read_new(last=not active))
        sys.stdout.flush()
        if active:
            time.sleep(POLL_S)
    if not tails:
        raise SubmitError(no_log_message(found[0]))
    for reason in filter(None, map(job_end.explain_newest, found[: job_end.MOST_ASKED])):
        print(reason, file=sys.stderr)


def no_log_message(run: RunEntry) -> str:
    """Return the message for a run without a log."""
    if run.scheduler is None:
        return f"{run.folder.id} ran on this machine: what it printed went to its terminal, and no log was written."
    if reason := job_end.explain_newest(run):
        return f"{run.folder.id} has no log. {reason}"
    jobs = f"no job of it ({listed(run.job_ids)}) has started" if run.job_ids else "it has no job in jobs.txt"
    return f"{run.folder.id} has no log yet: {jobs}."


class Tail:
    """A growing file, which may be truncated or removed. A `mark` is before each of its lines, which come when complete."""

    def __init__(self, path: Path, mark: str = "") -> None:
        self._path, self._mark, self._read, self._rest = path, mark, 0, ""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def read_new(self, last: bool = False) -> str:
        """Return what was added since the last call, with `last` also an incomplete line."""
        data = b""
        with suppress(OSError), open(self._path, "rb") as file:  # it may be removed, or not readable now
            if file.seek(0, 2) < self._read:
                self._read = 0
            file.seek(self._read)
            data = file.read()
        self._read += len(data)
        text = self._rest + self._decoder.decode(data)
        if not self._mark:
            return text
        *lines, self._rest = text.split("\n")
        if last and self._rest:
            lines, self._rest = [*lines, self._rest], ""
        return "".join(f"{self._mark}{line}\n" for line in lines)
