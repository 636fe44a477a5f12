"""Whether this command already runs inside an allocation, and what it may do there."""

from collections.abc import Mapping
from dataclasses import dataclass

from src.errors import SubmitError


@dataclass(frozen=True)
class Allocation:
    """An allocation that was made by hand (salloc, qsub -I).

    Attributes:
        job_id: its number.
        nodes: how many nodes it has; 0 where nothing tells.
    """

    job_id: str
    nodes: int


def allocation(environ: Mapping[str, str]) -> Allocation | None:
    """The allocation around this process; None on a login node.

    Raises:
        SubmitError: inside a batch job or one of several tasks: a job must not submit or start itself again.
    """
    job_id = environ.get("SLURM_JOB_ID") or environ.get("PBS_JOBID")
    if job_id is None:
        return None
    batch = environ.get("ENVIRONMENT") == "BATCH" or environ.get("PBS_ENVIRONMENT") == "PBS_BATCH"
    if batch or "TRAIN_HOSTS" in environ or int(environ.get("SLURM_STEP_NUM_TASKS", 1)) > 1:
        raise SubmitError(
            f"this is inside job {job_id}, and a job can't submit another: run the command on the login node, "
            "or inside salloc; a rank is `python src/train.py --run RUNDIR`."
        )
    return Allocation(job_id, int(environ.get("SLURM_JOB_NUM_NODES", 0)))
