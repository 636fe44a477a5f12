"""Print the logs of a job, and follow them while it runs."""

import sys
import time
from pathlib import Path

from slurm import queue
from slurm.runs import Submitted
from src.errors import SubmitError


def show(run: Submitted, heading: bool) -> None:
    """Print the output of the newest job of a run, then its errors.

    Raises:
        SubmitError: where there is no log yet.
    """
    found = run.logs()
    if not found:
        raise SubmitError(f"{run.run.id} has no log yet: no job of it has started.")
    for path in found:
        text = path.read_text(errors="replace")
        if heading or (len(found) > 1 and text):
            print(f"==> {path} <==")
        sys.stdout.write(text)


def follow(run: Submitted, poll: float = 0.5, ask_every: float = 5.0) -> None:
    """Print the logs of a run as they grow, until no job of it is alive.

    Args:
        poll: seconds between looks at the files.
        ask_every: seconds between questions to the scheduler, which does not like to be asked often.
    """
    read: dict[Path, int] = {}
    asked, living = float("-inf"), True
    while living:
        if time.monotonic() - asked >= ask_every:
            asked = time.monotonic()
            living = any(map(queue.alive, queue.states(run.scheduler, run.job_ids).values()))
        for path in run.logs():
            read[path] = _print_from(path, read.get(path, 0))
        if living:
            time.sleep(poll)


def _print_from(path: Path, start: int) -> int:
    with open(path, errors="replace") as file:
        file.seek(start)
        sys.stdout.write(file.read())
        sys.stdout.flush()
        return file.tell()
