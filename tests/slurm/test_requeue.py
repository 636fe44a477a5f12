"""Jobs of a real Slurm that are stopped and started again: one run folder, one curve, nothing lost."""

import time

import pytest

from tests.slurm.login import SMALL, Login, log, steps, wait_for
from tests.weights import info

pytestmark = [pytest.mark.slurm, pytest.mark.needs_root, pytest.mark.slow]


@pytest.mark.parametrize(
    "words",
    [
        ["launch=srun"],
        ["launch=srun", "trainer.nodes=2", "trainer.devices=2"],
        ["launch=torchrun", "trainer.nodes=2", "trainer.devices=1"],
        ["launch=mpirun", "trainer.nodes=2", "trainer.devices=1"],
        ["launch=horovodrun", "strategy=horovod", "trainer.nodes=2", "trainer.devices=1"],
        ["framework=keras", "launch=srun", "trainer.nodes=2", "trainer.devices=1"],
    ],
    ids=lambda words: "-".join(w.split("=")[1] for w in words),
)
def test_a_job_that_is_told_to_stop_requeues_itself_and_goes_on(login: Login, words: list[str]) -> None:
    job, run = login.submit("cluster=slurm", *words, "trainer.max_epochs=60", "monitor.tensorboard=false")
    wait_for(lambda: "epoch 2/60" in log(run), run, 120)
    login.testbed.run(["scancel", "--signal=USR1", "--batch", job])
    wait_for(lambda: "back to the queue" in log(run), run, 60)
    assert login.testbed.wait_job(job, 200) == "COMPLETED", log(run)
    assert info(run)["restarts"] == 1
    assert "resumed 1 time, 0 steps lost" in login.jobs("status", job)
    assert steps(run) == sorted(steps(run))  # one curve


def test_a_cancelled_job_stays_away(login: Login) -> None:
    job, run = login.submit("cluster=slurm", "trainer.max_epochs=500", "monitor.tensorboard=false")
    wait_for(lambda: "epoch 2/500" in log(run), run, 90)
    assert f"cancelled job {job}" in login.jobs("cancel", run.name)
    wait_for(lambda: login.testbed.job_states(job) == ["CANCELLED"], run, 30)
    time.sleep(2)
    assert login.testbed.job_states(job) == ["CANCELLED"]
    assert "no job of it is queued or running" in login.jobs("cancel", str(run))


def test_a_chain_ends_at_once_when_the_run_is_complete(login: Login) -> None:
    job, run = login.submit("cluster=slurm", "cluster.requeue=false", "cluster.chain=2", *SMALL)
    first, second = (run / "jobs.txt").read_text().split()
    assert first == job
    assert login.testbed.wait_job(first, 100) == "COMPLETED", log(run)
    assert login.testbed.wait_job(second, 60) == "COMPLETED", log(run)
    assert "nothing to do" in (run / f"slurm-{second}.out").read_text()
