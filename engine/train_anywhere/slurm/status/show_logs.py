"""Print the logs of jobs, and follow them while they run.

A rank other than 0 writes `[rank 3] ` before each of its lines (`files/terminal/output.py`), whatever has launched it; horovodrun puts a
mark of its own before that. What has no such mark is of rank 0, of the batch script or of the launcher.
"""

import codecs
import re
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from train_anywhere.errors import SubmitError
from train_anywhere.slurm.scheduler.wait_for_jobs import Waiting
from train_anywhere.slurm.status.find_runs import Submitted
from train_anywhere.slurm.status.sources import ended

MARK = re.compile(r"(?:\[\d+(?:,\d+)?\]<std(?:out|err)>:)?\[rank ([0-9]{1,9})\] ")
"""At the beginning of a line of a rank other than 0."""


def show(run: Submitted, heading: bool, rank: int | None = None) -> None:
    """Print the output of the newest job of a run, then its errors.

    Args:
        heading: print the name of each file above it.
        rank: print the lines of this rank only.

    Raises:
        SubmitError: there is no log, it can't be read, or this rank has printed nothing.
    """
    found = run.logs()
    if not found:
        raise SubmitError(no_log(run))
    if said := ended.ask(run):
        print(said, file=sys.stderr)
    seen: set[int] = set()
    for path in found:
        try:
            with open(path, errors="replace") as file:
                if heading or (len(found) > 1 and path.stat().st_size):
                    print(f"==> {path} <==")
                if rank is None:
                    shutil.copyfileobj(file, sys.stdout)
                else:
                    sys.stdout.writelines(_of_rank(file, rank, seen))
        except FileNotFoundError:
            continue  # just removed
        except OSError as error:
            if error.filename is None:  # an error of stdout, not of the log
                raise
            raise SubmitError(f"{path} can't be read: {error.strerror}.") from None
    if rank and rank not in seen:  # rank 0 has no mark
        others = f", they are of ranks {min(seen)} to {max(seen)}" if len(seen) > 1 else ""
        raise SubmitError(f"--rank {rank}: no line is of that rank{others}.")


def _of_rank(lines: Iterable[str], rank: int, seen: set[int]) -> Iterator[str]:
    """The lines of a rank; adds the ranks of all lines to `seen`."""
    for line in lines:
        seen.add(found := rank_of(line))
        if found == rank:
            yield line


def rank_of(line: str) -> int:
    """The rank that has printed a line."""
    mark = MARK.match(line)
    return int(mark[1]) if mark else 0


def follow(
    found: Sequence[Submitted], rank: int | None = None, poll: float = 0.5, ask_every: float = 5.0
) -> None:
    """Print the logs of runs as they grow, until none of their jobs is alive; of several, each line names its run.

    Args:
        rank: print the lines of this rank only.
        poll: seconds between reads of the files.
        ask_every: seconds between queries to the scheduler, which should not be queried often.

    Raises:
        SubmitError: no job is alive and there is no log.
        SchedulerError: the scheduler did not answer for a long time.
    """
    logs = Logs(found, rank)
    jobs = {kind: [i for r in found if r.scheduler == kind for i in r.job_ids] for kind in _kinds(found)}
    waiting, asked, living = {kind: Waiting() for kind in jobs}, float("-inf"), True
    while living:
        if time.monotonic() - asked >= ask_every:
            living = any(waiting[kind].living(kind, jobs[kind]) for kind in jobs)
            asked = time.monotonic()
        sys.stdout.write(logs.more(last=not living))
        sys.stdout.flush()
        if living:
            time.sleep(poll)
    if not logs.tails:
        raise SubmitError(no_log(found[0]))
    for said in filter(None, map(ended.ask, found[: ended.MOST_ASKED])):
        print(said, file=sys.stderr)


def _kinds(found: Sequence[Submitted]) -> set[str]:
    return {run.scheduler for run in found if run.scheduler}


def no_log(run: Submitted) -> str:
    """The message for a run without a log."""
    if run.scheduler is None:
        return f"{run.folder.id} ran on this machine: what it printed went to its terminal, and no log was written."
    if said := ended.ask(run):
        return f"{run.folder.id} has no log. {said}"
    jobs = (
        f"no job of it ({', '.join(run.job_ids)}) has started" if run.job_ids else "it has no job in jobs.txt"
    )
    return f"{run.folder.id} has no log yet: {jobs}."


class Logs:
    """The growing logs of some runs as one text. Lines that are marked or chosen are printed when they are complete."""

    def __init__(self, found: Sequence[Submitted], rank: int | None = None) -> None:
        self.found, self.rank = found, rank
        self.tails: dict[Path, Tail] = {}
        self._begun: dict[Path, str] = {}

    def more(self, last: bool = False) -> str:
        """What was added since the last call.

        Args:
            last: nothing more will come: an incomplete line is whole.
        """
        parts = []
        for run in self.found:
            mark = f"[{run.folder.id}] " if len(self.found) > 1 else ""
            for path in run.logs():
                text = self.tails.setdefault(path, Tail(path)).more()
                whole = not mark and self.rank is None
                parts.append(
                    text if whole else "".join(mark + line for line in self._lines(path, text, last))
                )
        return "".join(parts)

    def _lines(self, path: Path, text: str, last: bool) -> list[str]:
        """The complete lines of the chosen rank."""
        *lines, rest = (self._begun.get(path, "") + text).split("\n")
        if last and rest:
            lines, rest = [*lines, rest], ""
        self._begun[path] = rest
        return [f"{line}\n" for line in lines if self.rank is None or rank_of(line) == self.rank]


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
