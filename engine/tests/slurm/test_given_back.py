"""`monitor.idle=stop` in a chain of real jobs on a stand-in's idle GPUs."""

from pathlib import Path

import pytest

from engine.tests.monitor.nvidia import idle_gpus
from engine.tests.slurm.login import Login, log, wait_for
from train_anywhere.testing.weights import info

pytestmark = [pytest.mark.slurm, pytest.mark.needs_root]


def test_idle_gpus_are_given_back(login: Login, shared_dir: Path) -> None:
    """The job is not requeued, and the next one of the chain does not start."""
    environ = idle_gpus(shared_dir, warn=0.02, stop=0.1)
    setup = f'cluster.setup=["export PATH={shared_dir}/bin:$PATH PYTHONPATH={environ["PYTHONPATH"]}"]'
    size = ("trainer.nodes=2", "trainer.devices=1", "model=mlp", "trainer.max_epochs=1000000", setup)
    watch = ("monitor.idle=stop", "monitor.sample_seconds=0.5", "monitor.tensorboard=false")
    job, run = login.submit("cluster=slurm", "cluster.chain=2", *size, *watch)
    wait_for(lambda: "have done nothing for 0.02 min, and many sites" in log(run), run, 120)
    next_job = (run / "jobs.txt").read_text().split()[1]
    assert login.testbed.wait_job(job, 120) == "FAILED", log(run)
    assert "ExitCode=75:0" in login.testbed.run(["scontrol", "show", "job", job]).stdout
    assert login.testbed.wait_job(next_job, 60) == "CANCELLED"
    assert "back to the queue" not in log(run) and log(run).count("(monitor.idle=stop): the run saves") == 1
    found = info(run)
    assert found["attempts"][-1]["ended_by"] == "idle" and len(found["attempts"]) == 1
    assert (run / "checkpoints" / f"{found['step']:08d}" / "manifest.json").is_file()
    shown = login.jobs("status", job)
    assert "cancelled" in shown and "Why:         all GPUs did nothing for" in shown and "Next:" in shown
