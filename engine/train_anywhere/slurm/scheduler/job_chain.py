"""Submit a chain of jobs: either all are queued, or none is, or the error names those that are."""

from collections.abc import Callable, Sequence
from pathlib import Path

from train_anywhere.errors import ProjectError, SubmitError, SubmitInterrupted, UnclearError
from train_anywhere.slurm.scheduler import client, queue

INTERRUPT_NOTE = (
    "Interrupted: waiting for the scheduler's answer to cancel what it accepts; Ctrl-C again stops at once."
)


def submit_chain(
    kind: str,
    script: Path,
    links: int,
    record: Callable[[str], None],
    members: str | None = None,
    ok: Sequence[str] = (),
) -> list[str]:
    """Submit a script `links` times and return the job ids. Each job starts after the one before has ended, with any result.

    `record` is called with `UNCLEAR` before each submission, and then with its job id, so that a job is known even if this process is
    killed. `members` and `ok` are those of `client.submit_script`.

    Raises:
        SubmitError, SchedulerError: a job was refused; the earlier ones were cancelled.
        SubmitInterrupted: Ctrl-C was pressed; no job of the chain is queued.
        UnclearError: a job is queued, or may be.
    """
    job_ids: list[str] = []
    with client.delay_interrupt(INTERRUPT_NOTE) as interrupted:
        try:
            for _ in range(links):
                after = job_ids[-1] if job_ids else None
                record(client.UNCLEAR)
                job_ids.append(client.submit_script(kind, script, after, members, ok))
                record(job_ids[-1])
                if interrupted.is_set():
                    raise SubmitInterrupted("interrupted.")
        except UnclearError as error:
            raise error.add_sentence(_describe_unclear(kind, job_ids)) from None
        except (ProjectError, OSError, KeyboardInterrupt) as error:
            if job_ids:
                raise _cancel_accepted(kind, job_ids, error) from None
            if interrupted.is_set():
                raise SubmitInterrupted(f"interrupted; {error}") from None
            raise
    return job_ids


def _describe_unclear(kind: str, job_ids: list[str]) -> str:
    name, look = client.COMMAND[kind], client.QUEUE[kind]
    before = f" Job {', '.join(job_ids)}, submitted before it, is queued." if job_ids else ""
    return f"Whether {name} has submitted the job is not known: look at `{look}` before submitting again.{before}"


def _cancel_accepted(kind: str, job_ids: list[str], error: BaseException) -> SubmitError:
    """Cancel the accepted jobs and return the error to raise."""
    jobs = f"Job{'s' if len(job_ids) > 1 else ''} {', '.join(job_ids)}, already accepted,"
    why = f"{str(error).rstrip('.') or 'interrupted'}."
    try:
        if ending := queue.cancel(kind, job_ids[::-1], queue.END_TIMEOUT_S):
            raise SubmitError(f"{queue.describe(ending)}.")
    except ProjectError as trouble:
        look = f"Look at `{client.QUEUE[kind]}`."
        return UnclearError(f"{why} {jobs} could not be cancelled: {trouble} {look}", job_lost=False)
    interrupted = isinstance(error, SubmitInterrupted | KeyboardInterrupt)
    message = f"{why} {jobs} {'were' if len(job_ids) > 1 else 'was'} cancelled: nothing is queued."
    return SubmitInterrupted(message) if interrupted else SubmitError(message)
