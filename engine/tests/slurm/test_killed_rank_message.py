"""`monitor.notify` in a job of a real Slurm whose rank is killed."""

import json
from pathlib import Path

import pytest

from engine.tests.slurm.login import EACH_STEP, Login, log, trained, wait_for
from train_anywhere.testing.weights import info

pytestmark = [pytest.mark.slurm, pytest.mark.needs_root]


def test_a_killed_rank_has_a_message(login: Login, shared_dir: Path, slow_steps: str) -> None:
    """It can't send one itself: the batch script does."""
    file = shared_dir / "messages"
    words = ("trainer.nodes=2", "trainer.devices=1", "monitor.tensorboard=false", slow_steps)
    job, run = login.submit("cluster=slurm", *EACH_STEP, *words, f"monitor.notify='cat >> {file}'")
    wait_for(lambda: trained(run) > 3, run, 300)
    rank = json.loads((run / "lock").read_text())["pid"]
    assert login.testbed.run(["kill", "-KILL", str(rank)], node=info(run)["hosts"][0]).returncode == 0
    assert login.testbed.wait_job(job, 120) == "FAILED", log(run)
    (message,) = file.read_text().splitlines()
    assert message.startswith(f"digits {run.name} failed: "), log(run)
    assert message.endswith(f"rank 0 on {info(run)['hosts'][0]}: SIGKILL, often the memory limit"), message


def test_ranks_that_can_not_start_have_a_message(login: Login, shared_dir: Path) -> None:
    file, broken = shared_dir / "messages-of-starts", shared_dir / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text(
        'import os, sys\nif "--run" in sys.orig_argv:\n    os._exit(3)\n'
    )
    setup = f'cluster.setup=["export PYTHONPATH={broken}"]'
    job, run = login.submit("cluster=slurm", "launch=srun", setup, f"monitor.notify='cat >> {file}'")
    assert login.testbed.wait_job(job, 120) == "FAILED", log(run)
    assert file.read_text().startswith(f"digits {run.name} failed: the ranks did not start (exit code 3)"), (
        log(run)
    )
