"""A search on a real Slurm: a node is lost, the command is interrupted and repeated."""

import json
import re
import signal
import subprocess
import sys
import time

import pytest

from engine.tests.slurm.login import Login
from train_anywhere.files import ROOT

SEARCH = (
    "-m",
    "hydra/sweeper=optuna",
    "optimizer.lr=tag(log,interval(1e-3,1e-1))",
    "model.hidden=[8],[32]",
    "model=mlp",
)


@pytest.mark.usefixtures("on_again")
@pytest.mark.slurm
@pytest.mark.needs_root
@pytest.mark.slow
def test_on_a_cluster_that_loses_a_node(login: Login, slow_steps: str) -> None:
    """Twelve trials, three at once, with an interrupted command and a lost node."""
    words = [
        *SEARCH,
        "cluster=slurm",
        "wait=true",
        slow_steps,
        "hydra.sweeper.n_trials=12",
        "hydra.sweeper.n_jobs=3",
    ]
    words += [
        "trainer.max_epochs=2",
        "monitor.tensorboard=false",
        "trainer.accelerator=cpu",
        f"paths.results={login.results}",
    ]
    command = [sys.executable, str(ROOT / "src" / "train.py"), *words]
    environ = {**login.testbed.env(), "OMP_NUM_THREADS": "1"}
    first = subprocess.Popen(command, cwd=login.folder, env=environ, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while len([*login.results.glob("digits/*/checkpoints/*")]) < 2:
        assert time.monotonic() < deadline and first.poll() is None
        time.sleep(0.2)
    first.send_signal(signal.SIGINT)
    assert first.wait(60) == 130
    assert first.stderr and "continue as jobs. The same command resumes" in first.stderr.read()
    running = login.testbed.run(["squeue", "--noheader", "--states=RUNNING", "--format=%N"]).stdout.split()
    login.testbed.kill_node(running[0])
    second = subprocess.run(
        command, cwd=login.folder, env=environ, capture_output=True, text=True, timeout=500
    )
    assert second.returncode == 0, second.stdout + second.stderr
    assert re.search(r"resumed: \d+ of 12 trials are done, \d were running", second.stdout), second.stdout
    rows = re.findall(r"^(\d+)  +(0\.\d+)  +\S+ +\[\d+\]$", second.stdout, re.M)
    assert sorted(int(n) for n, _ in rows) == [*range(12)], second.stdout
    values = [float(value) for _, value in rows]
    assert values == sorted(values, reverse=True)
    [study] = login.results.glob("digits/*/study.json")
    assert json.loads(study.read_text())["trials"] == 12
    assert f"  {study.parent.name}-{rows[0][0]}  " in login.jobs("best", study.parent.name)
