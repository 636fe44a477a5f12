"""Programs as forks of a warm process are isolated, like new interpreters."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tools.testing.processes import start_python, wait_until
from train_anywhere.distributed.packages import framework_problem
from train_anywhere.files import ROOT
from train_anywhere.launch.forkserver import LOST_EXIT_CODE, ForkedProcess, ForkServer
from train_anywhere.launch.processes import fork_server
from train_anywhere.launch.warm_rank import read_line
from train_anywhere.testing.plugin import FRAMEWORKS

pytestmark = pytest.mark.new_process

MEMBERS = pytest.mark.skipif(bool(framework_problem("lightning")), reason="the members train with lightning")
SPOILER = "+callbacks.spoiler._target_=engine.tests.launch.spoilers.Spoiler"
SMALL = (
    "model=mlp", "trainer.max_steps=2", "trainer.accelerator=cpu", "monitor.progress=plain", "monitor.report=false",
)  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer(["train_anywhere.launch.rank", "numpy.random"]) as made:  # frameworks import both
        yield made


def said(server: ForkServer, *words: str, **options: Any) -> tuple[int, str]:
    """Exit code and output of a fork."""
    reader, writer = os.pipe()
    process = server.start([sys.executable, *words], stdout=writer, **options)
    assert isinstance(process, ForkedProcess)
    os.close(writer)
    with open(reader) as output:
        return process.wait(60), output.read()


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.slow
def test_nothing_is_initialized_before_a_fork(framework: str) -> None:
    looks = {
        "lightning": "import sys, torch; bad = torch.cuda.is_initialized() or torch.distributed.is_initialized()"
        " or 'tensorflow' in sys.modules",
        "keras": "from tensorflow.python.eager import context as c; bad = c._context is not None and c.context()._initialized",
    }
    threads = (
        "import os; print(len(os.listdir('/proc/' + open('/proc/self/stat').read().split()[3] + '/task')))"
    )
    files = "print([p for p in map(os.readlink, [f'/proc/self/fd/{n}' for n in range(3, 9) if os.path.lexists(f'/proc/self/fd/{n}')])])"
    with fork_server(framework, 1) as warm:
        code, text = said(warm, "-c", f"{looks[framework]}; {threads}; print(bad); {files}")
    assert (code, text.split()) == (0, ["1", "False", "[]"])


MATMUL = {
    "lightning": "import torch; print(float((torch.ones(600, 600) @ torch.ones(600, 600)).sum()))",
    "keras": "import tensorflow as tf; print(float(tf.reduce_sum(tf.ones((600, 600)) @ tf.ones((600, 600)))))",
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.quick("lightning")
def test_a_fork_computes_with_several_threads(framework: str) -> None:
    """Libraries that had started threads before the fork would wait for them for ever."""
    with fork_server(framework, 1) as warm:
        for _ in range(2):
            assert said(warm, "-c", MATMUL[framework]) == (0, f"{600.0**3}\n")


LOOK = """
import json, os, random, signal, sys, threading
print(json.dumps([sys.argv, sys.path, os.getcwd(), os.umask(0), os.getsid(0) == os.getpid() == os.getpgid(0), sys.stdin.read(),
    sorted(os.environ.items()), __name__, sys.modules["__main__"].__dict__ is globals(), threading.active_count(),
    {s.name: str(signal.getsignal(s)) for s in signal.valid_signals() if isinstance(s, signal.Signals)},
    sorted(os.listdir("/proc/self/fd"))[:4], sys.stdout.line_buffering, sys.stderr.line_buffering, sys.stdout.encoding]))
"""


@pytest.mark.parametrize("way", ["script", "-c", "-m", "-u"])
def test_a_fork_looks_like_a_new_interpreter(way: str, server: ForkServer, tmp_path: Path) -> None:
    (tmp_path / "look.py").write_text(LOOK)
    words = {"script": ["look.py"], "-c": ["-c", LOOK], "-m": ["-m", "look"], "-u": ["-u", "look.py"]}[way]
    environ = {**os.environ, "NEW": "value", "TZ": "UTC"}
    outputs = []
    before = os.umask(0o077)
    try:
        for start in (server.start, subprocess.Popen):
            with (tmp_path / "in").open("w+") as read, (tmp_path / "out").open("w+") as out:
                print("typed", file=read, flush=True)
                read.seek(0)
                streams = {"stdin": read, "stdout": out, "start_new_session": True}
                process = start([sys.executable, *words, "a word"], env=environ, cwd=tmp_path, **streams)
                assert process.wait(60) == 0
            outputs.append(json.loads((tmp_path / "out").read_text()))
    finally:
        os.umask(before)
    assert isinstance(process, subprocess.Popen)
    assert outputs[0] == outputs[1]


def test_exit_codes_and_signals_are_those_of_the_program(server: ForkServer) -> None:
    assert said(server, "-c", "import sys; sys.exit(7)")[0] == 7
    assert said(server, "-c", "import os; os.kill(os.getpid(), 9)")[0] == -9
    assert (
        said(server, "-c", "import atexit; atexit.register(print, 'at the end'); raise SystemExit")[1]
        == "at the end\n"
    )
    process = server.start([sys.executable, "-c", "import time; time.sleep(60)"])
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == process.poll() == -signal.SIGTERM
    process.kill()  # of a process that has ended: nothing


def test_lines_that_arrive_together_are_read_one_by_one() -> None:
    """The process id of a fork and the exit code of one that has ended at once."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"4711\n7\n")
        assert (read_line(ours), read_line(ours)) == ("4711", "7")


def test_ps_shows_the_command_of_a_fork(server: ForkServer) -> None:
    code, shown = said(server, "-c", "print(open('/proc/self/cmdline').read())", "a word")
    words = shown.strip("\0\n").split("\0")
    assert code == 0 and words == [sys.executable, "-c", "print(open('/proc/self/cmdline').read())", "a word"]


def test_the_parent_of_a_fork_is_its_starter(server: ForkServer) -> None:
    assert said(server, "-c", "import os; print(os.getppid())") == (0, f"{os.getpid()}\n")
    wait = "import os, time\nwhile os.getppid() != 1: time.sleep(0.05)"
    reader, writer = os.pipe()
    with ForkServer(["train_anywhere.errors"]) as other:
        waiting = other.start([sys.executable, "-c", wait], stdout=writer)
        assert waiting.poll() is None
    os.close(writer)
    with open(reader) as output:
        assert output.read() == ""  # the fork has ended: its server was closed


def test_random_numbers_differ_between_forks() -> None:
    draw = "import random, numpy; print(random.random(), numpy.random.rand())"
    with ForkServer(["numpy.random"]) as server:
        drawn = [said(server, "-c", draw)[1].split() for _ in range(2)]
    assert drawn[0][0] != drawn[1][0] and drawn[0][1] != drawn[1][1]


def test_what_a_fork_cannot_be_is_a_new_interpreter(server: ForkServer) -> None:
    show = [sys.executable, "-c", "print(1)"]
    with ForkServer(["src.no_such_module"]) as broken:
        processes = [broken.start(show), server.start(show, env={**os.environ, "OMP_NUM_THREADS": "7"})]
    assert [(type(p), p.wait(60)) for p in processes] == [(subprocess.Popen, 0)] * 2


def test_a_server_that_was_killed() -> None:
    with ForkServer(["train_anywhere.errors"]) as server:
        sleeping = server.start([sys.executable, "-c", "import time; time.sleep(60)"])
        os.kill(server._server.pid, signal.SIGKILL)
        assert sleeping.wait(30) == LOST_EXIT_CODE
        os.kill(sleeping.pid, signal.SIGKILL)
        assert server.start([sys.executable, "-c", ""]).wait(60) == 0


def sweep(results: Path, *words: str) -> "subprocess.Popen[str]":
    """`src/train.py -m`, with its output in pipes."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return start_python("src/train.py", "-m", *SMALL, *words, f"paths.results={results}", env=environ)


@MEMBERS
def test_members_of_a_sweep_are_isolated(tmp_path: Path) -> None:
    """A crash, an exit and changed globals of one member do not reach the next."""
    how = "+callbacks.spoiler.how=crash,exit,change,look"
    with sweep(tmp_path, SPOILER, how) as process:
        out, err = process.communicate(timeout=200)
    assert "seen: (torch.float32, None, False, False)" in out, err
    states = [json.loads(p.read_text())["state"] for p in sorted(tmp_path.glob("*/2*/run.json"))]
    assert sorted(states) == ["completed", "completed", "failed", "failed"], err
    assert "2 of 4 members failed" in err and "how=crash: signal SIGSEGV" in out
    assert process.returncode not in (0, 130)


@pytest.mark.slow
@MEMBERS
def test_each_member_runs_on_all_its_devices(tmp_path: Path) -> None:
    with sweep(tmp_path, "seed=1,2", "trainer.devices=2") as process:
        _, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    infos = [json.loads(path.read_text()) for path in tmp_path.glob("*/2*/run.json")]
    assert [(r["state"], r["attempts"][-1]["world_size"]) for r in infos] == [("completed", 2)] * 2


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 75), (signal.SIGKILL, -9)])
@pytest.mark.quick("2-130")
@MEMBERS
def test_a_signal_stops_a_sweep_with_a_checkpoint(number: int, code: int, tmp_path: Path) -> None:
    words = ("+callbacks.spoiler.how=wait", "seed=1,2", "trainer.max_epochs=400", "trainer.max_steps=null")
    with sweep(tmp_path, SPOILER, *words) as process:
        assert process.stdout and process.stderr
        while "waiting" not in (line := process.stdout.readline()):
            assert line, process.stderr.read()
        process.send_signal(number)
        _, err = process.communicate(timeout=100)
    assert process.returncode == code, err
    (run,) = tmp_path.glob("*/2*/run.json")
    wait_until(lambda: json.loads(run.read_text())["state"] != "running")
    info = json.loads(run.read_text())
    assert info["state"] == "preempted" and info["checkpoint"] and "Traceback" not in err
    assert number == signal.SIGKILL or "stopped at member 1 of 2; 1 did not start." in err
