"""Submit jobs with sbatch and qsub: all of a chain are queued, or none is."""

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from train_anywhere.distributed import programs
from train_anywhere.distributed.topology import expand_hosts
from train_anywhere.errors import (
    INTERRUPTED,
    NoAnswerError,
    ProjectError,
    SchedulerError,
    SubmitError,
    SubmitInterrupted,
    UnclearError,
    listed,
)
from train_anywhere.slurm.scheduler import queue
from train_anywhere.slurm.script.clean_environment import submission_environment

COMMAND = {"slurm": "sbatch", "pbs": "qsub"}
SCRIPT = {"slurm": "job.sbatch", "pbs": "job.pbs"}
QUEUE = {"slurm": "squeue --me", "pbs": "qstat -u $USER"}
"""Commands that list a user's jobs, for messages."""

UNCLEAR = "?"
"""Entry of jobs.txt for a job that may exist and whose id is not known."""

NOT_REACHED = r"Unable to contact slurm controller(?! \((send|receive))|cannot connect to server"
"""Errors of sbatch and qsub that mean that the scheduler has received nothing."""

RETRY_S, PAUSE_S = 60.0, 3.0
"""Total time of retries while the scheduler can't be reached, for example during its restart, and the pause between two tries."""

LOOKUP_PAUSES_S = (1.0, 4.0, 10.0)
"""Pauses before each look into the queue for a job whose id was lost. The last is longer than Slurm needs for a submission."""

ANSWER_LOST = r"timed out|Zero Bytes were transmitted|controller \((send|receive)"
"""Errors of sbatch after which the job may still have been accepted, such as `Socket timed out on send/recv operation`."""


def submit_script(
    scheduler: str, script: Path, after: str | None = None, members: str | None = None, ok: Sequence[str] = ()
) -> str:
    """Submit a script and return the job id, with retries for `RETRY_S`.

    The job starts after the job `after` has ended, with any result, and after all jobs of `ok` have completed successfully; if one
    of these fails, the scheduler cancels the job. `members`, such as 1,3, submits only these members of the script's array.

    Raises SubmitError: the scheduler refused the job (with its message) or was not reached. Raises SchedulerError: this machine has
    no scheduler. Raises UnclearError: the job may have been accepted, but its id is not known.
    """
    command, end = [COMMAND[scheduler], *_options(scheduler, after, members, ok)], time.monotonic() + RETRY_S
    while True:
        try:
            return _submit(command, script)
        except UnclearError as error:
            if scheduler != "slurm" or error.exit_code == INTERRUPTED:
                raise
            lost = re.search(ANSWER_LOST, str(error))
            if job := _find_accepted_job(script, after, members, LOOKUP_PAUSES_S if lost else (0.0,)):
                return job
            if job is None or not lost or time.monotonic() > end:
                raise
            why: SubmitError = error
        except SubmitError as error:
            if not re.search(NOT_REACHED, str(error)):
                raise
            why = error
        if time.monotonic() > end:
            raise SubmitError(f"{why} Type the command again when `{QUEUE[scheduler]}` answers.")
        print(f"{why} Trying again ...", file=sys.stderr, flush=True)
        time.sleep(PAUSE_S)


def _find_accepted_job(
    script: Path, after: str | None, members: str | None, pauses: Sequence[float]
) -> str | None:
    """Look up the new job of a script. "" if there is none, None without an answer.

    Other jobs of the same script are earlier links of its chain, and array members that are not resubmitted.
    """
    numbers = expand_hosts(f"[{members.partition('%')[0]}]") if members else None
    job = None
    for seconds in pauses:
        time.sleep(seconds)
        try:
            found = [i.partition("_") for i in queue.find_jobs().get(os.path.realpath(script), {})]
        except SchedulerError:
            job = None
            continue
        new = [i for i, _, n in found if int(i) > int(after or 0) and (numbers is None or n in numbers)]
        if job := new[0] if new else "":
            break
    return job


def _submit(command: Sequence[str], script: Path) -> str:
    name, environ = command[0], submission_environment(script.read_text(errors="replace"))
    try:
        answer = programs.run([*command, str(script)], programs.SUBMIT_TIMEOUT_S, environ=environ)
    except NoAnswerError as error:
        raise UnclearError(str(error)) from None
    except SchedulerError as error:
        raise SchedulerError(f"{error} dry_run=true shows what would be submitted.") from None
    except KeyboardInterrupt:
        raise UnclearError(f"interrupted while {name} was running.", exit_code=INTERRUPTED) from None
    failed = f"{name} failed with {programs.describe_exit(answer)}."
    if answer.code < 0 or re.search(ANSWER_LOST, answer.err):
        raise UnclearError(failed)
    if answer.code:
        refused = answer.message and not re.search(NOT_REACHED, answer.err)
        raise SubmitError(f"{name} refused the job: {answer.message}" if refused else failed)
    match = re.match(r"\s*([0-9]+(\[\])?)(?![\w])", answer.out.strip().rpartition("\n")[2])
    if not match:
        raise UnclearError(f"{name} answered {answer.message[:80]!a}, which has no job id in it.")
    return match[1]


BAD_OPTION = re.compile(
    r"unrecognized option|invalid option|option '.*' (is ambiguous|requires|doesn't allow)|Invalid --\S+ specification"
)
"""Matches what sbatch says of options and values that it can't read, before it asks the cluster."""


def test_only(script: str) -> str:
    """Return the answer of `sbatch --test-only`. Raises SubmitError with Slurm's message, or SchedulerError."""
    answer = programs.run(
        ["sbatch", "--test-only"], programs.SUBMIT_TIMEOUT_S, script, submission_environment(script)
    )
    if answer.code:
        raise SubmitError(f"sbatch --test-only: {programs.describe_exit(answer)}.")
    return answer.message


def estimate_start(script: str) -> str:
    """Return one line about the expected start. Raises SubmitError for an option that no sbatch knows."""
    try:
        answer = test_only(script)
    except ProjectError as error:
        if BAD_OPTION.search(str(error)):
            raise
        if re.search(f"{NOT_REACHED}|configuration source", str(error)):
            return "Expected start: not known, since no Slurm answers on this machine."
        return f"Expected start: not known. {error}"
    start = re.search(r"to start at (\S+)", answer)
    return f"Expected start: {start[1] if start else answer} (sbatch --test-only)"


@contextmanager
def delay_interrupt(note: str) -> Iterator[threading.Event]:
    """Delay Ctrl-C, so that no answer of the scheduler is lost.

    The first prints the note and sets the event, a second raises KeyboardInterrupt.
    """
    interrupted = threading.Event()

    def delay(number: int, frame: FrameType | None) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()
        print(note, file=sys.stderr, flush=True)

    if threading.current_thread() is not threading.main_thread():  # only the main thread gets signals
        yield interrupted
        return
    before = signal.signal(signal.SIGINT, delay)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


def _options(scheduler: str, after: str | None, members: str | None, ok: Sequence[str]) -> list[str]:
    if scheduler == "pbs":  # PBS takes whole arrays here, and removes a job whose condition can't be met
        ok = list(dict.fromkeys(i.partition("_")[0] for i in ok))
    waits = [f"afterany:{after}"] if after else []
    depend = ",".join([*waits, f"afterok:{':'.join(ok)}"] if ok else waits)
    if scheduler == "pbs":
        return [*(["-W", f"depend={depend}"] if depend else []), *(["-J", members] if members else [])]
    options = {
        f"--dependency={depend}": depend,
        "--kill-on-invalid-dep=yes": ok,
        f"--array={members}": members,
    }
    return ["--parsable", *(option for option, wanted in options.items() if wanted)]


def submit_chain(
    kind: str,
    script: Path,
    links: int,
    record: Callable[[str], None],
    members: str | None = None,
    ok: Sequence[str] = (),
) -> list[str]:
    """Submit a script `links` times. Each job starts after the one before has ended.

    `record` is called with `UNCLEAR` before each submission, and then with its job id, so that a job is known even if this process is
    killed. `members` and `ok` are those of `submit_script`.

    Raises SubmitError, SchedulerError: a job was refused; the earlier ones were cancelled. Raises SubmitInterrupted: Ctrl-C was
    pressed; no job of the chain is queued. Raises UnclearError: a job is queued, or may be.
    """
    job_ids: list[str] = []
    note = "waiting for the scheduler's answer to cancel what it accepts"
    with delay_interrupt(f"Interrupted: {note}; Ctrl-C again stops at once.") as interrupted:
        try:
            for _ in range(links):
                after = job_ids[-1] if job_ids else None
                record(UNCLEAR)
                job_ids.append(submit_script(kind, script, after, members, ok))
                record(job_ids[-1])
                if interrupted.is_set():
                    raise SubmitInterrupted("interrupted.")
        except UnclearError as error:
            before = f" Job {listed(job_ids)}, submitted before it, is queued." if job_ids else ""
            raise error.add_sentence(
                f"Whether {COMMAND[kind]} has submitted the job is not known: look at `{QUEUE[kind]}` before submitting again.{before}"
            ) from None
        except (ProjectError, OSError, KeyboardInterrupt) as error:
            if job_ids:
                raise _cancel_accepted(kind, job_ids, error) from None
            if interrupted.is_set():
                raise SubmitInterrupted(f"interrupted; {error}") from None
            raise
    return job_ids


def _cancel_accepted(kind: str, job_ids: list[str], error: BaseException) -> SubmitError:
    """Cancel the accepted jobs and return the error to raise."""
    jobs = f"Job{'s' if len(job_ids) > 1 else ''} {listed(job_ids)}, already accepted,"
    why = f"{str(error).rstrip('.') or 'interrupted'}."
    try:
        if ending := queue.cancel(kind, job_ids[::-1], queue.END_TIMEOUT_S):
            raise SubmitError(f"{queue.describe(ending)}.")
    except ProjectError as trouble:
        look = f"Look at `{QUEUE[kind]}`."
        return UnclearError(f"{why} {jobs} could not be cancelled: {trouble} {look}", job_lost=False)
    interrupted = isinstance(error, SubmitInterrupted | KeyboardInterrupt)
    message = f"{why} {jobs} {'were' if len(job_ids) > 1 else 'was'} cancelled: nothing is queued."
    return SubmitInterrupted(message) if interrupted else SubmitError(message)
