"""A process exits in time, with its own code, recorded, and not after its parent."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.testing.processes import run_python, start_python
from train_anywhere.config.schema import Config
from train_anywhere.files import ENGINE, ROOT
from train_anywhere.job.signals import Signals
from train_anywhere.job.supervisor import Supervisor
from train_anywhere.launch.exits import rank_environment
from train_anywhere.launch.processes import LocalRanks, LocalRun
from train_anywhere.runs.folder import create
from train_anywhere.runs.recorder import RunRecorder

HANGS = {
    "thread 'uploads' (": "threading.Thread(target=wait, name='uploads').start()",
    "process 'sender' (": "multiprocessing.get_context('fork').Process(target=wait, name='sender').start()",
    "an exit handler (": "atexit.register(wait)",
}
COMMANDS = {"return": 7, "sys.exit": 7, "sys.exit of a message": 1, "raise": 1}
PROGRAM = """
import atexit, multiprocessing, sys, threading, time
from train_anywhere.launch import exits

def wait():
    time.sleep(600)

def command():
    {hang}
    if {how!r} == "raise":
        raise LookupError("own")
    if {how!r} == "sys.exit":
        sys.exit(7)
    if {how!r} == "sys.exit of a message":
        sys.exit("own")
    return 7

exits.GRACE_S = 0.2
exits.leave(command)
"""


def program(text: str, tmp_path: Path) -> "subprocess.CompletedProcess[str]":
    file = tmp_path / "mine.py"
    file.write_text(text)
    environment = {**os.environ, "PYTHONPATH": f"{ENGINE}:{ROOT}"}
    return run_python(str(file), env=environment)


@pytest.mark.parametrize("how", COMMANDS)
@pytest.mark.parametrize("named", HANGS)
@pytest.mark.quick(
    "thread 'uploads' (-return", "thread 'uploads' (-sys.exit of a message", "an exit handler (-raise"
)
def test_what_keeps_a_process_is_named_and_it_exits_with_its_own_code(named, how, tmp_path):
    done = program(PROGRAM.format(hang=HANGS[named], how=how), tmp_path)
    assert done.returncode == COMMANDS[how]
    said = [line for line in done.stderr.splitlines() if "did not end within" in line]
    assert len(said) == 1 and said[0].startswith(named)
    if "process" not in named:
        assert "mine.py, line 6, in wait" in said[0]


DAEMON = """
import threading, time
from train_anywhere.launch import exits
exits.GRACE_S = 600  # longer than the test waits
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
exits.leave(lambda: 3)
"""


def test_a_process_that_nothing_keeps_exits_at_once(tmp_path: Path) -> None:
    done = program(DAEMON, tmp_path)
    assert (done.returncode, done.stderr) == (3, "")


EXITS = """
import os, sys
from train_anywhere.launch.exits import catch_os_exit

def mine():
    {inside}

with catch_os_exit(lambda reason: print("recorded:", reason)):
    mine()
print("still here")
"""


@pytest.mark.parametrize(("code", "expected"), [(0, 1), (7, 7)])
def test_an_exit_of_user_code_is_a_recorded_failure(code: int, expected: int, tmp_path: Path) -> None:
    done = program(
        EXITS.format(inside=f"sys.stdout.reconfigure(line_buffering=True); os._exit({code})"), tmp_path
    )
    assert (done.returncode, done.stdout) == (expected, f"recorded: user code called os._exit({code})\n")
    assert f"error: user code called os._exit({code})." in done.stderr and "in mine" in done.stderr


def test_a_forked_child_may_exit(tmp_path: Path) -> None:
    done = program(EXITS.format(inside="os.fork() or os._exit(0); os.wait()"), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "still here\n", "")


class Ends(LocalRun):
    """Ranks that record their start and end with a code."""

    def start(self, number: int) -> LocalRanks:
        RunRecorder(self.run).record_start(1)
        return LocalRanks([subprocess.Popen(["sh", "-c", f"exit {self.code}"])])


def test_ranks_that_exit_before_the_end_of_the_run_have_failed(
    make_config: Callable[..., Config], tmp_path: Path
) -> None:
    place = Ends(create(tmp_path, "x"), make_config())
    for place.code, expected in ((0, 1), (9, 9)):
        assert Supervisor(place, Signals()).supervise() == expected
        assert place.run.read_info()["state"] == "failed"


RANK = """
import signal, time
from train_anywhere.launch import exits
{first}
exits.PATIENCE_S = 0.5
exits.follow_parent()
print("ready", flush=True)
time.sleep(600)
"""
STARTS = """
import subprocess, sys, time
from train_anywhere.launch.exits import rank_environment
subprocess.Popen([sys.executable, sys.argv[1]], env=rank_environment(), start_new_session=True)
time.sleep(600)
"""


@pytest.mark.parametrize("first", ["", "signal.signal(signal.SIGTERM, lambda *_: time.sleep(600))"])
@pytest.mark.quick("")
def test_a_rank_ends_with_the_process_that_started_it(first: str, tmp_path: Path) -> None:
    rank, parent = tmp_path / "rank.py", tmp_path / "parent.py"
    rank.write_text(RANK.format(first=first))
    parent.write_text(STARTS)
    environment = {**rank_environment(), "PYTHONPATH": f"{ENGINE}:{ROOT}"}
    with start_python(parent, rank, env=environment) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGKILL)
        err = process.communicate(timeout=30)[1]  # both ends of its pipes are closed: the rank has ended
    assert err == f"process {process.pid}, which started this rank, has died.\n"
