"""A second job on a run folder is refused. The lock of a killed one is taken over."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools.testing.processes import start_python
from train_anywhere.errors import CheckpointError
from train_anywhere.files import ROOT
from train_anywhere.runs import lock
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.lock import RunLock, identity, process_start

HOLD = """
import sys
sys.path[:0] = [{root!r}, {root!r} + "/engine"]
from pathlib import Path
from train_anywhere.runs.lock import RunLock
from train_anywhere.runs.folder import RunDir
with RunLock(RunDir(Path({run!r}))):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)


def hold(run: RunDir, **env: str) -> subprocess.Popen[str]:
    """Another process that trains in the run folder."""
    script = HOLD.format(root=str(ROOT), run=str(run.path))
    other = start_python("-c", script, env={**os.environ, **env}, stdin=subprocess.PIPE)
    assert other.stdout and other.stdout.readline() == "held\n"
    return other


def left_behind(run: RunDir, **facts: Any) -> None:
    (run.path / "lock").write_text(json.dumps({**identity({}), **facts}) + "\n")


def test_the_second_is_refused_until_the_first_ends(run: RunDir) -> None:
    other = hold(run, SLURM_JOB_ID="4711")
    with pytest.raises(CheckpointError, match=r"job 4711 on .*scancel 4711"), RunLock(run):
        pass
    other.communicate()
    with RunLock(run):
        assert json.loads((run.path / "lock").read_text())["pid"] == os.getpid()
    assert not list(run.path.iterdir())


def test_a_killed_one_is_no_obstacle(run: RunDir) -> None:
    other = hold(run)
    other.kill()
    other.communicate()
    with RunLock(run):
        pass


def test_another_process_that_got_the_same_number_is_not_the_holder(run: RunDir) -> None:
    left_behind(run, pid=os.getppid(), started="1")
    with RunLock(run):
        pass
    assert process_start(os.getpid()) and not process_start(2**22 + 1)


@pytest.fixture
def squeue(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], None]:
    """Return a function that puts a shell script in the place of Slurm's program."""
    file = tmp_path_factory.mktemp("bin") / "squeue"
    monkeypatch.setenv("PATH", f"{file.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(lock, "STALE_AFTER_S", 0.1)
    file.touch(0o755)
    return lambda answer: file.write_text(f"#!/bin/sh\n{answer}\n") and None


@pytest.mark.parametrize(
    "answer, refused",
    [
        ("echo RUNNING", True),
        ("echo PENDING", False),
        ("true", False),
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", False),
        ("echo 'Unable to contact slurm controller' >&2; exit 1", False),
        (r"printf '\377\376 RUNNING'", False),
    ],
)
@pytest.mark.quick("echo RUNNING-True", "true-False")
def test_the_queue_is_asked_about_a_job_on_another_node(
    run: RunDir, squeue: Callable[[str], None], answer: str, refused: bool
) -> None:
    squeue(answer)
    left_behind(run, host="elsewhere", job="4711")
    try:
        with RunLock(run):
            assert not refused
    except CheckpointError as error:
        assert refused and "job 4711 on elsewhere" in str(error)


def test_the_queue_does_not_know_jobs_of_another_cluster(
    run: RunDir, squeue: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "STALE_AFTER_S", 0.1)  # the lock's own heartbeat decides, and there is none
    squeue("echo RUNNING")  # a job of this cluster, with the same number
    left_behind(run, host="elsewhere", job="4711", cluster="another")
    with RunLock(run):
        pass


def test_the_same_job_started_again(run: RunDir, squeue: Callable[[str], None]) -> None:
    squeue("echo RUNNING")  # which is this job itself
    left_behind(run, host="elsewhere", job="4711", restart="")
    with RunLock(run, environ={"SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": "1"}):
        pass


def test_the_heartbeat_counts_when_nothing_else_shows_who_lives(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clocks do not matter: the other machine's may be wrong by years."""
    monkeypatch.setattr(lock, "STALE_AFTER_S", 60.0)
    left_behind(run, host="elsewhere")
    beating = "import os, sys, time\nwhile True: time.sleep(.2); os.utime(sys.argv[1], (time.time(), 1e6 + time.time()))"
    other = subprocess.Popen([sys.executable, "-c", beating, str(run.path / "lock")])
    try:
        with pytest.raises(CheckpointError, match=r"process .* on elsewhere"), RunLock(run):
            pass
    finally:
        other.kill()
        other.wait()
    monkeypatch.setattr(lock, "STALE_AFTER_S", 0.1)
    with RunLock(run):
        pass


def test_a_lock_that_changed_hands_meanwhile_is_put_back(run: RunDir) -> None:
    left_behind(run, pid=1)
    ours = RunLock(run)
    ours._remove_left_behind({"pid": 99})
    assert json.loads((run.path / "lock").read_text())["pid"] == 1


@pytest.mark.parametrize(
    "text",
    ["", '{"host": 1}', "[]", "[" * 100_000, json.dumps({**identity({}), "pid": "1", "job": ["x"]})],
    ids=["half written", "a key only", "a list", "brackets", "other types"],
)
@pytest.mark.quick("a key only")
def test_a_damaged_lock_is_taken_over(run: RunDir, text: str) -> None:
    (run.path / "lock").write_text(text)
    with RunLock(run):
        pass
    assert not list(run.path.iterdir())


def test_a_lock_that_is_not_a_file_stays(run: RunDir, tmp_path: Path) -> None:
    for make in (Path.mkdir, lambda path: path.symlink_to("nowhere")):
        make(run.path / "lock")
        with (
            pytest.raises(CheckpointError, match=r"lock is not a file of this project; move it away"),
            RunLock(run),
        ):
            pass
        assert [p.name for p in run.path.iterdir()] == ["lock"]
        (run.path / "lock").rename(tmp_path.with_name(f"{tmp_path.name}-{make.__name__}"))
