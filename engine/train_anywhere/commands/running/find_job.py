"""Find the job or process that trains a run now."""

from collections.abc import Iterator
from contextlib import contextmanager

from train_anywhere.errors import SchedulerError, SubmitError
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.summary import is_program
from train_anywhere.slurm.scheduler import ownership, queue
from train_anywhere.slurm.status import find_runs, local_runs
from train_anywhere.slurm.status.find_runs import RunEntry

STARTED_STATES = ("running", "starting")
"""States of a run whose ranks exist or are being started."""


@contextmanager
def explain_unreachable_scheduler(consequence: str) -> Iterator[None]:
    """Add the consequence, what was not done, to the error of an unreachable scheduler."""
    try:
        yield
    except SchedulerError as error:
        raise SchedulerError(f"what is queued is not known: {error} {consequence}") from None


def find_job(run: RunEntry, what: str) -> str:
    """Return the id of the job that trains the run now; empty for a run of this machine.

    Args:
        run: the run.
        what: what the run must do for the command, such as "save a checkpoint", for the message.

    Raises:
        SubmitError: the run does not train now.
        SchedulerError: the scheduler does not answer.
    """
    if run.scheduler is None:
        state, job = local_runs.read_state(run)[0], ""
    else:
        with explain_unreachable_scheduler("Nothing was done."):
            [run], known = find_runs.query_scheduler([run])
        running = [i for i, state in known.active(run.job_ids).items() if state == "RUNNING"]
        state, job = find_runs.read_state(run, known)[0], (running or [""])[-1]
    if state not in STARTED_STATES:
        where = "it ran on this machine and" if run.scheduler is None else "it"
        raise SubmitError(f"{where} is {state}; only a run that is running can {what}.")
    return job


def refuse_program(run: RunEntry, advice: str) -> None:
    """Raise SubmitError if the run is a program, which has no training loop that could be asked for something."""
    if is_program(run.folder):
        raise SubmitError(f"it is a program, {advice}.")


def cancel(run: RunEntry) -> str:
    """Remove a run from the queue, or stop it; return what to print. Raises SubmitError, SchedulerError."""
    if run.scheduler is None:
        return local_runs.stop(run)
    with explain_unreachable_scheduler("Nothing was cancelled."):
        [run] = find_runs.with_unrecorded_jobs([run], wait=True)
        living = [*queue.query_queue(run.scheduler or "", run.job_ids).active(run.job_ids)]
        ownership.refuse_other_jobs(run, living)
    if not living:
        find_runs.refuse_unclear(run)
        return f"{run.folder.id} has no queued or running job."
    ending = queue.cancel(run.scheduler or "", living)
    _record_cancelled(run.folder)
    return f"{run.folder.id}: cancelled job {', '.join(living)}{', which is ending' if ending else ''}."


def _record_cancelled(run: RunDir) -> None:
    if run.read_info().get("state") == "queued":
        run.update(state="cancelled")
