"""`after=RUN`: a run that another one is to follow has, at the submission, no checkpoint yet that counts."""

from pathlib import Path

from train_anywhere.runs.folder import RunDir


def awaited(after: str | None, run: RunDir) -> bool:
    """Whether a job that follows `after` waits for this run, so that what it will have is looked at by the job.

    Args:
        after: a run, or the sweep of which the run is a member.

    Raises:
        CheckpointError: run.json is damaged.
    """
    if after is None or Path(after).name not in (run.id, run.id.rpartition("-")[0]):
        return False
    return run.info().get("state") != "completed"
