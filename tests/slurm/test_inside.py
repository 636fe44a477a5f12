import pytest

from slurm.inside import Allocation, allocation
from src.errors import SubmitError


def test_a_login_node_is_no_allocation() -> None:
    assert allocation({"PATH": "/bin"}) is None


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"}, Allocation("7", 2)),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"}, Allocation("7", 2)),
        ({"PBS_JOBID": "7.server", "PBS_ENVIRONMENT": "PBS_INTERACTIVE"}, Allocation("7.server", 0)),
    ],
)  # fmt: skip
def test_salloc_and_interactive_jobs(environ: dict[str, str], expected: Allocation) -> None:
    assert allocation(environ) == expected


@pytest.mark.parametrize(
    "environ",
    [
        {"SLURM_JOB_ID": "7", "ENVIRONMENT": "BATCH"},
        {"PBS_JOBID": "7", "PBS_ENVIRONMENT": "PBS_BATCH"},
        {"SLURM_JOB_ID": "7", "SLURM_STEP_NUM_TASKS": "8"},
        {"SLURM_JOB_ID": "7", "TRAIN_HOSTS": "node1:2"},
    ],
)
def test_a_job_can_not_submit(environ: dict[str, str]) -> None:
    with pytest.raises(SubmitError, match="inside job 7"):
        allocation(environ)
