"""The cost of a submission, counted beforehand."""

from collections.abc import Callable

import pytest

from train_anywhere.config.schema import Config
from train_anywhere.slurm.script.job import Job, describe_gpu_hours, gpu_hours, make_job


@pytest.fixture
def job(make_config: Callable[..., Config]) -> Callable[..., Job]:
    def make(line: str, members: int | None = None) -> Job:
        numbers = None if members is None else range(members)
        return make_job(make_config(*line.split()), "/run", "/run/code", numbers)

    return make


def test_gpus_times_hours_times_jobs(job: Callable[..., Job]) -> None:
    for line, members, hours in (
        ("cluster=slurm trainer.nodes=2 trainer.devices=4 cluster.time=2:00:00", None, 16),
        ("cluster=slurm trainer.nodes=2 trainer.devices=4 cluster.time=2:00:00 cluster.chain=3", None, 48),
        ("cluster=slurm cluster.time=30", 12, 6),
        ("cluster=slurm trainer.nodes=2 trainer.total_devices=3 cluster.time=60", None, 3),
        (
            "cluster=narval cluster.account=def-pi trainer.devices=1 cluster.time=60 cluster.exclusive=true",
            None,
            4,
        ),
        ("cluster=slurm", None, None),
        ("cluster=slurm cluster.time=0", None, None),
        ("cluster=slurm trainer.accelerator=cpu cluster.time=60", None, None),
    ):
        assert gpu_hours(job(line, members)) == hours, line


def test_in_words(job: Callable[..., Job]) -> None:
    said = describe_gpu_hours(job("cluster=slurm cluster.time=30 cluster.requeue=false", 12))
    assert said == "up to 6 (1 GPU x 0:30:00 x 12 jobs)"
    requeued = describe_gpu_hours(job("cluster=slurm cluster.time=1 trainer.devices=2"))
    assert requeued == "up to 0.033 (2 GPUs x 0:01:00), and the same after each requeue"
    assert describe_gpu_hours(job("cluster=slurm")) == "not known: cluster.time is not set"
    assert describe_gpu_hours(job("cluster=slurm trainer.accelerator=cpu")) == ""
