"""Ranks of srun as forks of a process on their node, or new interpreters without it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tools.testbed.namespaces import is_running
from tools.testing.processes import wait_until
from train_anywhere.files import ENGINE, ROOT
from train_anywhere.job.running_ranks import find_ranks
from train_anywhere.launch import warm_rank
from train_anywhere.launch.forkserver import ForkServer

pytestmark = [
    pytest.mark.new_process,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Slurm's nodes have Linux"),
]

RANK = """
import json, os, signal, sys, time
mask = os.umask(0)
cpus = sorted(os.sched_getaffinity(0))
environ = {k: v for k, v in os.environ.items() if k != "LC_CTYPE"}
print(json.dumps([sys.argv[1:], os.getcwd(), mask, cpus, environ, sys.orig_argv[1:],
    {s.name: str(signal.getsignal(s)) for s in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)}]), flush=True)
print("to errors", file=sys.stderr, flush=True)
what = os.environ["WHAT"]
if what.isdigit():
    os._exit(int(what))
if what == "dies":
    os.kill(os.getpid(), 9)
signal.signal(signal.SIGUSR1, lambda *_: os._exit(75))
print("waits", os.getpid(), flush=True)
time.sleep(60)
"""

TASK = """
import sys
from pathlib import Path
from train_anywhere.launch import warm_rank
warm_rank.ROOT, warm_rank.WAIT_S = Path({root!r}), {wait}
warm_rank.address = lambda: {name!r}
warm_rank.main({run!r})
"""

Task = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Task]:
    """Start a task of srun, as its node's process forks ranks."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text(RANK)
    environ = {
        "SLURM_JOB_ID": f"{os.getpid()}-{time.monotonic_ns()}",
        "SLURMD_NODENAME": "n1",
        "SLURM_LOCALID": "0",
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    name = warm_rank.address()
    with ForkServer(["train_anywhere.errors"], address=name):

        def start(
            what: str, warm: bool = True, cpus: frozenset[int] = frozenset({0})
        ) -> "subprocess.Popen[str]":
            code = TASK.format(
                root=str(tmp_path), wait=60 if warm else 0.2, run="/a/run", name=name if warm else "\0nobody"
            )
            environ = {
                **os.environ,
                "WHAT": what,
                "SLURM_PROCID": "3",
                "CUDA_VISIBLE_DEVICES": "3",
                "PYTHONPATH": str(ENGINE),
                "TRAIN_ROOT": str(ROOT),
            }
            return subprocess.Popen(
                [sys.executable, "-c", code], env=environ, cwd=tmp_path, text=True, umask=0o27, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=lambda: os.sched_setaffinity(0, cpus),
            )  # fmt: skip

        yield start


def test_a_fork_has_what_srun_gave_to_its_task(task: Task) -> None:
    """Environment, CPUs, folder, umask and signals equal those of a new interpreter."""
    said = [task("0", warm).communicate(timeout=60) for warm in (True, False)]
    looks = [json.loads(out) for out, _ in said]
    assert looks[0] == looks[1] and looks[0][3] == [0] and looks[0][4]["CUDA_VISIBLE_DEVICES"] == "3"
    assert said[0][1] == "to errors\n"
    line = "The ranks on n1 start as new interpreters: no process of this node has imported the framework.\n"
    assert said[1][1] == line + "to errors\n"


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize(("what", "code"), [("0", 0), ("75", 75), ("dies", -9)])
def test_a_task_ends_as_its_rank_does(task: Task, what: str, code: int, warm: bool) -> None:
    process = task(what, warm)
    process.communicate(timeout=60)
    assert process.returncode == code


def test_signals_reach_the_rank_and_its_end_follows_that_of_its_task(task: Task) -> None:
    for number, code in ((signal.SIGUSR1, 75), (signal.SIGTERM, -15), (signal.SIGKILL, -9)):
        with task("waits") as process:
            assert process.stdout
            process.stdout.readline()
            rank = int(process.stdout.readline().split()[1])
            found = subprocess.run(["pgrep", *find_ranks("/a/run")[2:]], capture_output=True, text=True)
            assert found.stdout.split() == [str(rank)], "a task must not look like a rank"
            process.send_signal(number)
            assert process.wait(30) == code
        wait_until(lambda rank=rank: not is_running(rank))


def test_ranks_whose_libraries_would_read_other_variables_are_new_interpreters(task: Task) -> None:
    os.environ["OMP_NUM_THREADS"], before = "7", os.environ.get("OMP_NUM_THREADS")
    try:
        out, err = task("0").communicate(timeout=60)
    finally:
        os.environ.pop("OMP_NUM_THREADS")
        os.environ |= {"OMP_NUM_THREADS": before} if before else {}
    assert json.loads(out)[4]["OMP_NUM_THREADS"] == "7"
    assert "The ranks on n1 start as new interpreters: OMP_NUM_THREADS changed." in err
