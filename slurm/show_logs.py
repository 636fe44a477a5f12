"""Print the logs of a job, and follow them while it runs."""

import codecs
import shutil
import sys
import time
from pathlib import Path

from slurm.runs import Submitted
from slurm.waiting import Waiting
from src.errors import SubmitError


def show(run: Submitted, heading: bool) -> None:
    """Print the output of the newest job of a run, then its errors.

    Raises:
        SubmitError: there is no log, or it can't be read.
    """
    found = run.logs()
    if not found:
        raise SubmitError(no_log(run))
    for path in found:
        try:
            with open(path, errors="replace") as file:
                if heading or (len(found) > 1 and path.stat().st_size):
                    print(f"==> {path} <==")
                shutil.copyfileobj(file, sys.stdout)
        except FileNotFoundError:
            continue  # just removed
        except OSError as error:
            if error.filename is None:  # an error of stdout, not of the log
                raise
            raise SubmitError(f"{path} can't be read: {error.strerror}.") from None


def follow(run: Submitted, poll: float = 0.5, ask_every: float = 5.0) -> None:
    """Print the logs of a run as they grow, until none of its jobs is alive.

    Args:
        poll: seconds between reads of the files.
        ask_every: seconds between queries to the scheduler, which should not be queried often.

    Raises:
        SubmitError: no job is alive and there is no log.
        SchedulerError: the scheduler did not answer for a long time.
    """
    tails: dict[Path, Tail] = {}
    waiting, asked, living = Waiting(), float("-inf"), True
    while living:
        if time.monotonic() - asked >= ask_every:
            living = waiting.living(str(run.scheduler), run.job_ids)
            asked = time.monotonic()
        for path in run.logs():
            sys.stdout.write(tails.setdefault(path, Tail(path)).more())
        sys.stdout.flush()
        if living:
            time.sleep(poll)
    if not tails:
        raise SubmitError(no_log(run))


def no_log(run: Submitted) -> str:
    """The message for a run without a log."""
    if run.scheduler is None:
        return f"{run.folder.id} ran on this machine: what it printed went to its terminal, and no log was written."
    jobs = (
        f"no job of it ({', '.join(run.job_ids)}) has started" if run.job_ids else "it has no job in jobs.txt"
    )
    return f"{run.folder.id} has no log yet: {jobs}."


class Tail:
    """A file that grows, and may be truncated or removed."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def more(self) -> str:
        """What was added since the last call."""
        try:
            with open(self._path, "rb") as file:
                if file.seek(0, 2) < self._read:
                    self._read = 0
                file.seek(self._read)
                data = file.read()
        except OSError:
            return ""  # removed, or not readable at the moment
        self._read += len(data)
        return self._decoder.decode(data)
