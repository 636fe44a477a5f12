"""Losses of real jobs when nodes or ranks die, and a second job for the same run folder."""

import json
import re
import subprocess

import pytest

from engine.tests.slurm.login import EACH_STEP, Login, check_curve, log, trained, wait_for
from tools.testing.weights import info

pytestmark = [pytest.mark.slurm, pytest.mark.needs_root]

INTERVAL = 100
"""Steps between checkpoints of the nodes test: at least 5 s."""


@pytest.mark.slow
@pytest.mark.usefixtures("on_again")
@pytest.mark.parametrize("dies", [["second"], ["second", "first"]], ids=["one", "both"])
def test_nodes_powered_off_in_mid_epoch(login: Login, slow_steps: str, dies: list[str]) -> None:
    """One job loses its second node, the other its first. Both resume from checkpoints."""
    kept = ["checkpoint.every_n_epochs=1000", f"checkpoint.every_n_steps={INTERVAL}", "data.batch_size=24"]
    size = ["trainer.nodes=2", "trainer.devices=1", "trainer.max_steps=250"]
    words = ["cluster=slurm", *size, *EACH_STEP, *kept, slow_steps]
    excluded, victim = (
        {"second": "node3,node4", "first": "node1,node2"},
        {"second": "node2", "first": "node3"},
    )
    jobs = [(*login.submit(*words, f"cluster.exclude='{excluded[which]}'"), victim[which]) for which in dies]
    for _, run, node in jobs:
        wait_for((run / f"checkpoints/{INTERVAL:08d}").exists, run, 300)
        login.testbed.kill_node(node)
    for job, run, node in jobs:
        wait_for(lambda job=job: login.testbed.job_states(job) == ["PENDING"], run, 300)
        login.testbed.boot_node(node)
    for job, run, _ in jobs:
        assert login.testbed.wait_job(job, 300) == "COMPLETED", log(run)
        before, after = info(run)["attempts"]
        assert (before["ended_by"], after["ended_by"]) == ("killed", "completed"), log(run)
        lost = before["step"] - after["from_step"]
        assert after["from_step"] >= INTERVAL and 0 <= lost <= INTERVAL
        assert f"resumed 1 time, {lost} step{'' if lost == 1 else 's'} lost" in login.jobs("status", job)
        check_curve(run, 250)


@pytest.mark.slow
@pytest.mark.parametrize("dies", ["rank 0", "srun and its ranks"])
def test_what_a_killed_rank_left_on_its_node_is_published(login: Login, slow_steps: str, dies: str) -> None:
    """The run folder refuses checkpoints for a while, until rank 0 or the whole launch is dead."""
    kept = ["checkpoint.every_n_epochs=1000", "checkpoint.every_n_steps=20"]
    size = ["trainer.nodes=2", "trainer.devices=1", "trainer.max_steps=200"]
    job, run = login.submit("cluster=slurm", *EACH_STEP, *kept, *size, slow_steps)
    wait_for(lambda: trained(run) > 0, run, 300)
    node, folder = info(run)["hosts"][0], str(run / "checkpoints")

    def on_node(command: str) -> str:
        done = login.testbed.run(["sh", "-c", command], node=node)
        assert done.returncode == 0, done.stderr
        return done.stdout

    on_node(f"mount --bind {folder} {folder} && mount -o remount,ro,bind {folder}")
    wait_for(lambda: "takes no checkpoints" in log(run), run, 300)
    rank = json.loads((run / "lock").read_text())["pid"]
    kill = f"kill -KILL {rank}" if dies == "rank 0" else f"pkill -KILL -f '[t]rain.py --run {run}'"
    on_node(f"kill -STOP {rank} && umount {folder} && {kill}")
    left = max(int(name) for name in on_node(f"cd /tmp/*/{run.name} && ls -d [0-9]*").split())
    assert login.testbed.wait_job(job, 300) == "FAILED", log(run)
    shown = login.testbed.run(["scontrol", "show", "job", job]).stdout
    # of rank 0, or of the other one, which srun ended
    assert re.search(r"ExitCode=1(37|43):0", shown), log(run)
    assert info(run)["state"] == "failed"
    assert int((run / "checkpoints/newest").read_text()) == left, log(run)

    again = re.match(r"Submitted job (\d+)", login.jobs("resubmit", run.name))
    assert again
    assert login.testbed.wait_job(again[1], 300) == "COMPLETED", log(run)
    assert [part.get("from_step") for part in info(run)["attempts"]] == [0, left]
    check_curve(run, 200)


@pytest.mark.slow
def test_a_second_job_in_the_run_folder_is_refused(login: Login, slow_steps: str) -> None:
    """The refusal has the first job's id, at submission and in a job submitted by hand."""
    first, run = login.submit("cluster=slurm", *EACH_STEP, slow_steps)
    wait_for(lambda: trained(run) > 0, run, 300)
    resumed = login.command("train", f"resume={run}")
    assert (resumed.returncode, f"job {first} " in resumed.stderr) == (2, True), (
        resumed.stdout + resumed.stderr
    )
    before = info(run)
    by_hand = subprocess.run(
        ["sbatch", "--parsable", run / "job.sbatch"], env=login.testbed.env(), capture_output=True, text=True
    )
    assert login.testbed.wait_job(by_hand.stdout.strip(), 300) == "FAILED"
    assert f"job {first} on {before['hosts'][0]} trains in {run}" in log(run)
    assert info(run) == before
    assert f"cancelled job {first}" in login.jobs("cancel", run.name)
