"""Real jobs with a hanging, slow or missing rank, with killed side processes, and `jobs.py save`, `debug` and `shell`."""

import json
import os
import pty
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.tests.slurm.login import EACH_STEP, Login, check_curve, log, trained, wait_for
from tools.testbed.testbed_cluster import Testbed
from tools.testing.weights import final_weights, info, largest_difference
from train_anywhere.runs.folder import RunDir

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
    assert json.loads((RunDir(run).monitor / "tensorboard.json").read_text()) == {
        "url": url[0],
        "tunnel": tunnel[0],
    }
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


SIZE = ("cluster=slurm", "trainer.nodes=2", "trainer.devices=1", "monitor.tensorboard=false")
NO_OTHER = ("checkpoint.every_n_epochs=1000000", "trainer.max_steps=100000")


def shell(login: Login, typed: str, *words: str) -> "subprocess.CompletedProcess[str]":
    """Type commands into `jobs.py shell`."""
    command = [
        sys.executable,
        str(login.root / "src/jobs.py"),
        "shell",
        *words,
        "--results",
        str(login.results),
    ]
    environ = login.testbed.env()
    return subprocess.run(command, input=typed, env=environ, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("launch", ["launch=srun", "launch=torchrun"])
def test_a_job_saves_shows_its_stacks_and_has_a_shell(login: Login, slow_steps: str, launch: str) -> None:
    job, run = login.submit(*SIZE, *EACH_STEP, *NO_OTHER, launch, slow_steps)
    wait_for(lambda: trained(run) > 5, run, 300)
    hosts = info(run)["hosts"]
    assert len(hosts) == 2

    saved = login.folder / login.jobs("save").strip()
    assert (saved / "manifest.json").is_file() and saved.parent == run / "checkpoints"

    out = login.jobs("debug")
    for rank, host in enumerate(hosts):
        assert f"---- {run.name}: rank {rank} on {host}, process " in out
    assert out.count("src/train.py") >= 2
    assert login.jobs("debug", "--rank", "1").count("---- ") == 1

    typed = "echo $SLURMD_NODENAME $SLURM_JOB_ID; pwd; pgrep -fc -- '--run .*'; exit 3\n"
    for node, words in enumerate(([], ["--node", "1"], ["--node", hosts[1]])):
        done = shell(login, typed, *words)
        assert done.returncode == 3, done.stderr
        where = hosts[min(node, 1)]
        assert done.stdout.splitlines()[:2] == [f"{where} {job}", str(run)]
        assert int(done.stdout.splitlines()[2]) >= 1  # the ranks are there
        assert f"ssh -J root@<login node> root@{where}" in done.stderr
    done = shell(login, "", "--node", "7")
    assert done.returncode == 2 and f"it has no node 7: 0 is {hosts[0]}, 1 is {hosts[1]}." in done.stderr

    end, terminal = pty.openpty()
    command = [sys.executable, str(login.root / "src/jobs.py"), "shell", "--results", str(login.results)]
    with subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, env=login.testbed.env()
    ) as process:
        os.write(end, b"tty; echo on $SLURMD_NODENAME; exit\n")
        os.close(terminal)
        assert process.wait(timeout=120) == 0
    printed = b""
    while chunk := _read(end):
        printed += chunk
    assert b"/dev/pts/" in printed and f"on {hosts[0]}".encode() in printed, printed

    out = login.jobs("save", "--stop")
    assert f"cancelled job {job}" in out
    assert login.testbed.wait_job(job, 120) == "CANCELLED", log(run)
    assert int((run / "checkpoints" / "newest").read_text()) >= int(Path(out.splitlines()[0]).name)
    assert "back to the queue" not in log(run)
    done = login.command("jobs", "save", "--results", str(login.results))
    assert done.returncode == 2 and "it is cancelled; only a run that is running can save" in done.stderr


def _read(end: int) -> bytes:
    try:
        return os.read(end, 4096)
    except OSError:  # the other end is closed
        return b""
