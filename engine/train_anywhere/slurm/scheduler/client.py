"""Calls of sbatch and qsub, one per job."""

import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from train_anywhere.distributed import programs
from train_anywhere.distributed.network.hostlist import expand_hosts
from train_anywhere.errors import (
    INTERRUPTED,
    NoAnswer,
    ProjectError,
    SchedulerError,
    SubmitError,
    UnclearError,
)
from train_anywhere.slurm.scheduler import queue
from train_anywhere.slurm.script.clean_environment import for_submission

COMMAND = {"slurm": "sbatch", "pbs": "qsub"}
SCRIPT = {"slurm": "job.sbatch", "pbs": "job.pbs"}
QUEUE = {"slurm": "squeue --me", "pbs": "qstat -u $USER"}
"""What a user types to see their own jobs."""

UNCLEAR = "?"
"""Stands in jobs.txt for a job that may exist and whose id is not known."""

NOT_REACHED = r"Unable to contact slurm controller(?! \((send|receive))|cannot connect to server"
"""Errors of sbatch and qsub after which the scheduler has got nothing."""

RETRY_S, PAUSE_S = 60.0, 3.0
"""Time to try again while the scheduler is not reached, such as at its restart, and the pause between two tries."""

LOOK_AFTER_S = (1.0, 4.0, 10.0)
"""Pauses before the queue is asked for a job whose id was lost; the last one is longer than Slurm works on a submission."""

ANSWER_LOST = r"timed out|Zero Bytes were transmitted|controller \((send|receive)"
"""Errors of sbatch after which the job may still have been accepted, such as `Socket timed out on send/recv operation`."""


def submit_script(
    scheduler: str, script: Path, after: str | None = None, members: str | None = None, ok: Sequence[str] = ()
) -> str:
    """Submit a script, again for `RETRY_S` while the scheduler is not reached; returns the job id.

    Args:
        scheduler: slurm or pbs.
        script: the batch script.
        after: id of a job that must have ended first.
        members: only these members of the script's array, such as 1,3.
        ok: ids of jobs that must have ended well first; if one does not, this job is cancelled.

    Raises:
        SubmitError: it was refused, with the scheduler's message, or the scheduler was not reached.
        SchedulerError: there is no scheduler here.
        UnclearError: it may have been accepted, but its job id is not known.
    """
    command, end = [COMMAND[scheduler], *_options(scheduler, after, members, ok)], time.monotonic() + RETRY_S
    while True:
        try:
            return _submit(command, script)
        except _NotReached as error:
            why: SubmitError = error
        except UnclearError as error:
            if scheduler != "slurm" or error.exit_code == INTERRUPTED:
                raise
            lost = re.search(ANSWER_LOST, str(error))
            if job := _accepted(script, after, members, LOOK_AFTER_S if lost else (0.0,)):
                return job
            if job is None or not lost or time.monotonic() > end:
                raise
            why = error
        if time.monotonic() > end:
            raise SubmitError(f"{why} Type the command again when `{QUEUE[scheduler]}` answers.")
        print(f"{why} Trying again ...", file=sys.stderr, flush=True)
        time.sleep(PAUSE_S)


class _NotReached(SubmitError):
    """The scheduler has not got the submission."""


def _accepted(script: Path, after: str | None, members: str | None, pauses: Sequence[float]) -> str | None:
    """Return the new job of a script; "" if the queue has none, None if it does not answer.

    Others of the script are the links of a chain before it, and members of its array that are not submitted again.
    """
    numbers = expand_hosts(f"[{members.partition('%')[0]}]") if members else None
    job = None
    for seconds in pauses:
        time.sleep(seconds)
        try:
            found = [i.partition("_") for i in queue.jobs_of(str(script))]
        except SchedulerError:
            job = None
            continue
        new = [i for i, _, n in found if int(i) > int(after or 0) and (numbers is None or n in numbers)]
        if job := new[0] if new else "":
            break
    return job


def _submit(command: Sequence[str], script: Path) -> str:
    name, environ = command[0], for_submission(script.read_text(errors="replace"))
    try:
        answer = programs.run([*command, str(script)], programs.SUBMIT_TIMEOUT_S, environ=environ)
    except NoAnswer as error:
        raise UnclearError(str(error)) from None
    except SchedulerError as error:
        raise SchedulerError(f"{error} dry_run=true shows what would be submitted.") from None
    except KeyboardInterrupt:
        raise UnclearError(f"interrupted while {name} was running.", exit_code=INTERRUPTED) from None
    if answer.code < 0 or re.search(ANSWER_LOST, answer.err):
        raise UnclearError(f"{name} failed with {programs.describe_end(answer)}.")
    if answer.code and re.search(NOT_REACHED, answer.err):
        raise _NotReached(f"{name} failed with {programs.describe_end(answer)}.")
    if answer.code:
        if not answer.message:
            raise SubmitError(f"{name} failed with {programs.describe_end(answer)}.")
        raise SubmitError(f"{name} refused the job: {answer.message}")
    return _job_id(name, answer)


def test_only(script: str) -> str:
    """Slurm's own verdict on a script, which is not submitted.

    Raises:
        SubmitError: Slurm would refuse it, with Slurm's message.
        SchedulerError: Slurm does not answer.
    """
    answer = programs.run(
        ["sbatch", "--test-only"], programs.SUBMIT_TIMEOUT_S, script, for_submission(script)
    )
    if answer.code:
        raise SubmitError(f"sbatch --test-only: {programs.describe_end(answer)}.")
    return answer.message


def expected(script: str) -> str:
    """When Slurm would start a job that was submitted now, in one line; without an answer it says why."""
    try:
        said = test_only(script)
    except ProjectError as error:
        return f"Expected start: not known. {error}"
    start = re.search(r"to start at (\S+)", said)
    return f"Expected start: {start[1] if start else said} (sbatch --test-only)"


@contextmanager
def held_interrupt(what: str) -> Iterator[threading.Event]:
    """Delay Ctrl-C: the first only sets the event, so that no answer of the scheduler is lost; a second is a KeyboardInterrupt.

    Args:
        what: printed at the first Ctrl-C.
    """
    asked = threading.Event()

    def hold(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        print(what, file=sys.stderr, flush=True)

    if threading.current_thread() is not threading.main_thread():  # only that one gets signals
        yield asked
        return
    before = signal.signal(signal.SIGINT, hold)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


def _options(scheduler: str, after: str | None, members: str | None, ok: Sequence[str]) -> list[str]:
    waits = [f"afterany:{after}"] if after else []
    if scheduler == "pbs":  # knows whole arrays here, and removes a job whose condition can't be met
        ok = list(dict.fromkeys(i.partition("_")[0] for i in ok))
    waits += [f"afterok:{':'.join(ok)}"] if ok else []
    if scheduler == "pbs":
        return [
            *(["-W", f"depend={','.join(waits)}"] if waits else []),
            *(["-J", members] if members else []),
        ]
    depend = [f"--dependency={','.join(waits)}"] if waits else []
    kill = ["--kill-on-invalid-dep=yes"] if ok else []
    return ["--parsable", *depend, *kill, *([f"--array={members}"] if members else [])]


def _job_id(name: str, answer: programs.Answer) -> str:
    last = answer.out.strip().rpartition("\n")[2]
    match = re.match(r"\s*([0-9]+(\[\])?)(?![\w])", last)
    if not match:
        raise UnclearError(f"{name} answered {answer.message[:80]!a}, which has no job id in it.")
    return match[1]
