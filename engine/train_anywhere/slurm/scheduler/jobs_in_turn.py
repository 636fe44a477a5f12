"""Submit a chain of jobs: all are queued, or none, or the error says which."""

from collections.abc import Callable, Sequence
from pathlib import Path

from train_anywhere.errors import Interrupted, ProjectError, SubmitError, UnclearError
from train_anywhere.slurm.scheduler import client, queue

INTERRUPTED = (
    "Interrupted: waiting for the scheduler's answer to cancel what it accepts; Ctrl-C again stops at once."
)


def submit_chain(
    kind: str,
    script: Path,
    links: int,
    accepted: Callable[[str], None],
    members: str | None = None,
    ok: Sequence[str] = (),
) -> list[str]:
    """Submit a script `links` times; each job begins when the one before has ended, successfully or not.

    Args:
        kind: slurm or pbs.
        accepted: called with each job id as soon as it is known, to record it.
        members: only these members of the script's array, such as 1,3.
        ok: jobs of another run that must have ended well before the first one begins.

    Raises:
        SubmitError, SchedulerError: a job was refused; those before it were cancelled.
        Interrupted: Ctrl-C; no job of it is queued.
        UnclearError: a job is queued, or may be.
    """
    job_ids: list[str] = []
    with client.held_interrupt(INTERRUPTED) as interrupted:
        try:
            for _ in range(links):
                after = job_ids[-1] if job_ids else None
                job_ids.append(client.submit_script(kind, script, after, members, ok))
                accepted(job_ids[-1])
                if interrupted.is_set():
                    raise Interrupted("interrupted.")
        except UnclearError as error:
            raise error.adding(_unclear(kind, job_ids)) from None
        except (ProjectError, OSError, KeyboardInterrupt) as error:
            if job_ids:
                raise _withdrawn(kind, job_ids, error) from None
            if interrupted.is_set():
                raise Interrupted(f"interrupted; {error}") from None
            raise
    return job_ids


def _unclear(kind: str, job_ids: list[str]) -> str:
    name, look = client.COMMAND[kind], client.QUEUE[kind]
    before = f" Job {', '.join(job_ids)}, submitted before it, is queued." if job_ids else ""
    return f"Whether {name} has submitted the job is not known: look at `{look}` before submitting again.{before}"


def _withdrawn(kind: str, job_ids: list[str], error: BaseException) -> SubmitError:
    """Cancel what was accepted; returns the error to raise."""
    jobs = f"Job{'s' if len(job_ids) > 1 else ''} {', '.join(job_ids)}, already accepted,"
    why = f"{str(error).rstrip('.') or 'interrupted'}."
    try:
        if ending := queue.cancel(kind, job_ids[::-1], queue.END_TIMEOUT_S):
            raise SubmitError(f"{queue.describe(ending)}.")
    except ProjectError as trouble:
        return UnclearError(
            f"{why} {jobs} could not be cancelled: {trouble} Look at `{client.QUEUE[kind]}`.",
            job_lost=False,
        )
    back = f"{why} {jobs} {'were' if len(job_ids) > 1 else 'was'} cancelled: nothing is queued."
    return Interrupted(back) if isinstance(error, Interrupted | KeyboardInterrupt) else SubmitError(back)
