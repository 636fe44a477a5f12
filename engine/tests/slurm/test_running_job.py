"""`jobs.py save`, `debug` and `shell` on jobs of a real Slurm, with two nodes."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from engine.tests.slurm.login import EACH_STEP, Login, log, trained, wait_for
from tools.testing.weights import info

pytestmark = [pytest.mark.slurm, pytest.mark.needs_root, pytest.mark.slow]
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
