"""Real jobs with a hanging, slow or missing rank, which the job's log names."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from engine.tests.slurm.login import EACH_STEP, Login, check_curve, log, trained, wait_for
from tools.testing.weights import info

pytestmark = [pytest.mark.slurm, pytest.mark.needs_root, pytest.mark.slow]

LAUNCHES = [
    f"launch={words}"
    for words in os.environ.get("LAUNCHES", "srun,torchrun,mpirun,horovodrun strategy=horovod").split(",")
]
"""All jobs of a test at once: what takes time is waiting."""

TWO = ("cluster=slurm", "trainer.nodes=2", "trainer.devices=1", "monitor.tensorboard=false")

NEVER_COMES = """
import os, socket, sys, time
if "--run" in sys.orig_argv and os.environ["TRAIN_HOSTS"].split(":")[0] != socket.gethostname():
    time.sleep(600)
"""
"""Python runs it at its start, so that every rank but those of the first node sleeps before it can report its start."""


def second_rank(run: Path) -> dict[str, Any]:
    """Return rank 1 once its node has reported it."""
    for path in (run / "monitor").glob("ranks-*.json"):
        for rank in json.loads(path.read_text())["ranks"]:
            if rank["rank"] == 1:
                return dict(rank)
    return {}


def test_a_stopped_rank_is_named_and_the_job_comes_back(login: Login, slow_steps: str) -> None:
    hang = ["monitor.hang_minutes=0.3", "monitor.hang=requeue"]
    often = ["checkpoint.every_n_epochs=1000", "checkpoint.every_n_steps=5", "trainer.max_steps=150"]
    size = [*TWO[:3], *EACH_STEP, *often, *hang]
    jobs = [login.submit(*size, *launch.split(), slow_steps) for launch in LAUNCHES]
    for _, run in jobs:
        wait_for(lambda run=run: trained(run) > 10 and second_rank(run), run, 300)
        rank = second_rank(run)
        login.testbed.run(["kill", "-STOP", str(rank["pid"])], node=rank["host"])
    for _, run in jobs:
        rank = second_rank(run)
        wait_for(lambda run=run: "watch: rank 1 on " in log(run), run, 90)
        assert f"rank 1 on {rank['host']} hangs in " in log(run)  # a step, or a validation
        assert "its process is stopped; rank 0 waits for it." in log(run)
        wait_for(lambda run=run: "back to the queue" in log(run), run, 90)
        assert len([*(run / "monitor").glob("stacks-node*-rank[01].txt")]) == 2
    for job, run in jobs:
        assert login.testbed.wait_job(job, 300) == "COMPLETED", log(run)
        first, second = info(run)["attempts"]
        assert (first["ended_by"], second["ended_by"]) == ("hang", "completed")
        assert first["step"] - second["from_step"] <= 6  # what was staged has been published
        assert info(run)["state"] == "completed"
        check_curve(run, 150)


def test_a_rank_that_never_comes_is_named_within_a_minute(login: Login, shared_dir: Path) -> None:
    (shared_dir / "sitecustomize.py").write_text(NEVER_COMES)
    setup = f'cluster.setup=["export PYTHONPATH={shared_dir}"]'
    job, run = login.submit(*TWO, "launch=srun", "trainer.max_epochs=1", setup)
    wait_for(lambda: "has not started" in log(run), run, 100)
    said = re.search(
        r"watch: rank 1 on (\S+) has not started, (\d+) s after the first rank; rank 0 waits.", log(run)
    )
    assert said and int(said[2]) < 60, log(run)
    assert said[1] != info(run)["hosts"][0]
    login.jobs("cancel", job)


def test_a_slow_rank_is_named_with_its_factor(login: Login) -> None:
    """A rank that is stopped and continued in turns works a sixth of the time."""
    job, run = login.submit(*TWO, "launch=srun", "trainer.max_epochs=100000")
    wait_for(lambda: second_rank(run).get("step", 0) > 10, run, 200)
    rank = second_rank(run)
    turns = f"while kill -STOP {rank['pid']}; do sleep 0.15; kill -CONT {rank['pid']}; sleep 0.03; done"
    command = login.testbed.command(["sh", "-c", turns], node=rank["host"])
    neighbour = subprocess.Popen(command, env=login.testbed.env_inside(), start_new_session=True)
    try:
        said = rf"watch: rank 1 on {rank['host']} is slow: its own work takes ([\d.]+) times"
        wait_for(lambda: re.search(said, log(run)), run, 150)
        slow = json.loads((run / "monitor" / "watch.json").read_text())["slow"]
    finally:
        os.killpg(neighbour.pid, signal.SIGKILL)
        neighbour.wait()
        login.testbed.run(["kill", "-CONT", str(rank["pid"])], node=rank["host"])
    login.jobs("cancel", job)
    factors = [float(factor) for factor in re.findall(said, log(run))]
    assert [s["rank"] for s in slow] == [1] and slow[0]["factor"] == pytest.approx(factors[0], rel=0.3)
