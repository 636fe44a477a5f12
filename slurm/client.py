"""The words exchanged with the scheduler: sbatch or qsub, called once per job."""

import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from src.distributed import programs
from src.errors import INTERRUPTED, NoAnswer, SchedulerError, SubmitError, UnclearError

COMMAND = {"slurm": "sbatch", "pbs": "qsub"}
SCRIPT = {"slurm": "job.sbatch", "pbs": "job.pbs"}
QUEUE = {"slurm": "squeue --me", "pbs": "qstat -u $USER"}
"""What a person types to see the own jobs."""

ANSWER_LOST = "timed out|Zero Bytes were transmitted"
"""Words of sbatch with which the controller may have accepted the job all the same: Socket timed out on send/recv operation."""


def submit_script(scheduler: str, script: Path, after: str | None = None, members: str | None = None) -> str:
    """Submit a script; returns the job id.

    Args:
        scheduler: slurm or pbs.
        script: the batch script.
        after: id of a job that must have ended before.
        members: only these members of the script's array, such as 1,3.

    Raises:
        SubmitError: it was refused, in the scheduler's own words.
        SchedulerError: there is no scheduler to ask.
        UnclearError: it may have been accepted, but its job id is not known.
    """
    name = COMMAND[scheduler]
    options = ["--parsable"] if scheduler == "slurm" else []
    if after:
        options += (
            [f"--dependency=afterany:{after}"] if scheduler == "slurm" else ["-W", f"depend=afterany:{after}"]
        )
    if members:
        options += [f"--array={members}"] if scheduler == "slurm" else ["-J", members]
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
        said = answer.message
        raise SubmitError(
            f"{name} refused the job: {said}"
            if said
            else f"{name} failed with {programs.describe_end(answer)}."
        )
    return _job_id(name, answer)


def test_only(script: str) -> str:
    """Slurm's own verdict on a script, which is not submitted.

    Raises:
        SubmitError: where Slurm would refuse it, in Slurm's words.
        SchedulerError: where Slurm can't be asked.
    """
    answer = programs.run(["sbatch", "--test-only"], programs.SUBMIT_TIMEOUT_S, script, _environment(script))
    if answer.code:
        raise SubmitError(f"sbatch --test-only: {programs.describe_end(answer)}.")
    return answer.message


@contextmanager
def held_interrupt(what: str) -> Iterator[threading.Event]:
    """Ctrl-C within sets the event, so that no answer of the scheduler is lost; a second one is a KeyboardInterrupt.

    Args:
        what: is said when it happens.
    """
    asked = threading.Event()

    def hold(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        print(what, file=sys.stderr, flush=True)

    if threading.current_thread() is not threading.main_thread():  # which alone gets signals
        yield asked
        return
    before = signal.signal(signal.SIGINT, hold)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


def _job_id(name: str, answer: programs.Answer) -> str:
    last = answer.out.strip().rpartition("\n")[2]
    match = re.match(r"\s*([0-9]+(\[\])?)(?![\w])", last)
    if not match:
        raise UnclearError(f"{name} answered {answer.message[:80]!a}, which has no job id in it.")
    return match[1]


def _environment(script: str) -> dict[str, str]:
    """The environment without SBATCH_* variables that would win over an option of the script.

    LC_ALL stays as it is, unlike for questions: the job inherits it.
    """
    options = set(re.findall(r"^#SBATCH --([a-z-]+)", script, re.MULTILINE))
    return {
        k: v
        for k, v in os.environ.items()
        if k[:7] != "SBATCH_" or k[7:].lower().replace("_", "-") not in options
    }
