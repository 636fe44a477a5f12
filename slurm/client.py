"""Calls of sbatch and qsub, one per job."""

import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from src.distributed import programs
from src.errors import INTERRUPTED, NoAnswer, ProjectError, SchedulerError, SubmitError, UnclearError

COMMAND = {"slurm": "sbatch", "pbs": "qsub"}
SCRIPT = {"slurm": "job.sbatch", "pbs": "job.pbs"}
QUEUE = {"slurm": "squeue --me", "pbs": "qstat -u $USER"}
"""What a user types to see their own jobs."""

UNCLEAR = "?"
"""Stands in jobs.txt for a job that may exist and whose id is not known."""

ANSWER_LOST = "timed out|Zero Bytes were transmitted"
"""Errors of sbatch after which the job may still have been accepted, such as `Socket timed out on send/recv operation`."""


def submit_script(
    scheduler: str, script: Path, after: str | None = None, members: str | None = None, ok: Sequence[str] = ()
) -> str:
    """Submit a script; returns the job id.

    Args:
        scheduler: slurm or pbs.
        script: the batch script.
        after: id of a job that must have ended first.
        members: only these members of the script's array, such as 1,3.
        ok: ids of jobs that must have ended well first; if one does not, this job is cancelled.

    Raises:
        SubmitError: it was refused, with the scheduler's message.
        SchedulerError: there is no scheduler here.
        UnclearError: it may have been accepted, but its job id is not known.
    """
    name, options = COMMAND[scheduler], _options(scheduler, after, members, ok)
    environ = _environment(script.read_text(errors="replace"))
    try:
        answer = programs.run([name, *options, str(script)], programs.SUBMIT_TIMEOUT_S, environ=environ)
    except NoAnswer as error:
        raise UnclearError(str(error)) from None
    except SchedulerError as error:
        raise SchedulerError(f"{error} dry_run=true shows what would be submitted.") from None
    except KeyboardInterrupt:
        raise UnclearError(f"interrupted while {name} was running.", exit_code=INTERRUPTED) from None
    if answer.code < 0 or re.search(ANSWER_LOST, answer.err):
        raise UnclearError(f"{name} failed with {programs.describe_end(answer)}.")
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
    answer = programs.run(["sbatch", "--test-only"], programs.SUBMIT_TIMEOUT_S, script, _environment(script))
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


def _environment(script: str) -> dict[str, str]:
    """The environment without the SBATCH_* variables that would override an option of the script.

    LC_ALL stays as it is, unlike for queries, because the job inherits it.
    """
    options = set(re.findall(r"^#SBATCH --([a-z-]+)", script, re.MULTILINE))
    return {
        k: v
        for k, v in os.environ.items()
        if k[:7] != "SBATCH_" or k[7:].lower().replace("_", "-") not in options
    }
