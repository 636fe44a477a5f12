"""`after=RUN` at submission: the run that a job waits for may not have its checkpoints yet."""

from pathlib import Path

from train_anywhere.runs.folder import RunDir


def is_waited_for(after: str | None, run: RunDir) -> bool:
    """Return whether a job with this `after`, a run or a sweep, waits for the run. If so, only the job can check its checkpoints.

    Raises:
        CheckpointError: run.json is damaged.
    """
    if after is None or Path(after).name not in (run.id, run.id.rpartition("-")[0]):
        return False
    return run.read_info().get("state") != "completed"
