"""Side processes of real jobs: kills change nothing, and the TensorBoard server is reached."""

import json
import random
import re
import shlex
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.tests.slurm.login import EACH_STEP, Login, log, wait_for
from tools.testbed.testbed_cluster import Testbed
from tools.testing.weights import final_weights, info, largest_difference
from train_anywhere.runs.folder import RunDir

pytestmark = [pytest.mark.slurm, pytest.mark.needs_root, pytest.mark.slow]

SIDE = r"^[^ ]+ -m train_anywhere\.features\.node "
JOBS = 5


def test_killed_side_processes_change_nothing(login: Login, slow_steps: str) -> None:
    """Twenty kills in five jobs of four nodes leave the weights of an undisturbed job."""
    words = ["trainer.nodes=4", "trainer.devices=1", "trainer.max_steps=320", "monitor.sample_seconds=0.2"]
    words = ["cluster=slurm", *EACH_STEP, *words, slow_steps]
    alone = final_weights(login.result(*words))
    kills = 0
    for number in range(JOBS):
        moments = random.Random(number)
        job, run = login.submit(*words)
        wait_for(lambda run=run: len(info(run).get("hosts", [])) == 4, run, 300)  # type: ignore[misc]
        for node in moments.sample(info(run)["hosts"], 4):
            time.sleep(moments.uniform(0, 2))
            wait_for(lambda node=node: killed(login.testbed, node), run, 60)  # type: ignore[misc]
            kills += 1
        assert login.testbed.wait_job(job, 300) == "COMPLETED", log(run)
        assert "ExitCode=0:0" in login.testbed.run(["scontrol", "show", "job", job]).stdout
        assert "train_anywhere.features" not in log(run) and "srun:" not in log(run)
        assert largest_difference(final_weights(run), alone) == 0.0
    assert kills == 20


def killed(testbed: Testbed, node: str) -> bool:
    """Kill a side process. Return if there was one."""
    return testbed.run(["pkill", "-KILL", "-f", SIDE], node=node).returncode == 0


def test_the_printed_tunnel_leads_to_tensorboard(
    testbed_for: Callable[..., Testbed], shared_dir: Path, slow_steps: str
) -> None:
    """Typed on the login node as the user's machine, through a login node to the first node."""
    login = Login(testbed_for("slurm", nodes=2, ssh=True), shared_dir)
    words = ["trainer.nodes=2", "trainer.devices=1", "monitor.serve=true", "monitor.sample_seconds=0.5"]
    job, run = login.submit("cluster=slurm", *EACH_STEP, *words, slow_steps, "cluster.site.login=login")
    wait_for(lambda: "ssh -N" in log(run), run, 300)
    tunnel, url = re.search(r"ssh -N .*", log(run)), re.search(r"http://\S+", log(run))
    assert tunnel and url
    wait_for(lambda: "tensorboard" in RunDir(run).read_info(), run, 300)
    assert RunDir(run).read_info()["tensorboard"] == {"url": url[0], "tunnel": tunnel[0]}
    opened = subprocess.Popen(login.testbed.command(shlex.split(tunnel[0])), env=login.testbed.env_inside())

    def page(path: str) -> str:
        code = f"import urllib.request; print(urllib.request.urlopen({url[0] + path!r}, timeout=20).read().decode())"
        return login.testbed.run(["python3", "-c", code]).stdout

    try:
        wait_for(lambda: "<title>TensorBoard</title>" in page(""), run, 60)
        wait_for(lambda: "." in json.loads(page("data/runs") or "[]"), run, 120)
        login.jobs("cancel", job)
        login.testbed.wait_job(job, 120)
        assert page("") == ""
    finally:
        opened.kill()
        opened.wait()
    gone = login.testbed.run(["pgrep", "-f", "train_anywhere.features"], node=info(run)["hosts"][0])
    assert gone.stdout == ""
