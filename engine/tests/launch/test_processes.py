"""Ranks on this machine: they get their ranks, are watched, and end together."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tools.testing.processes import start_python, wait_until
from train_anywhere.files import ROOT
from train_anywhere.launch import processes as launch
from train_anywhere.launch.forkserver import ForkServer
from train_anywhere.launch.processes import LocalRanks, LocalRun
from train_anywhere.runs.folder import RunDir

Train = Callable[..., "CompletedProcess[str]"]


def processes(*programs: str) -> list["subprocess.Popen[bytes]"]:
    return [subprocess.Popen([sys.executable, "-c", p], start_new_session=True) for p in programs]


def watch_ranks(ranks: LocalRanks) -> int:
    while (code := ranks.poll()) is None:
        time.sleep(0.05)
    return code


@pytest.mark.parametrize(
    ("ends", "code", "how"),
    [
        ("time.sleep(0.3)", 0, ""),
        ("raise SystemExit(9)", 9, "exit code 9"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "signal SIGKILL"),
    ],
)
def test_a_failed_rank_is_named_and_the_others_are_ended(ends, code, how, capfd):
    started = processes(
        *(f"import os, signal, time; {do}" for do in (f"time.sleep({600 if code else 0})", ends))
    )
    ranks = LocalRanks(started, grace=0.5)
    assert watch_ranks(ranks) == code
    if code:
        assert f"rank 1 of 2 ended with {how}; the other ranks were stopped." in capfd.readouterr().err
        assert started[0].poll() == -signal.SIGKILL
    assert ("rank 1 on " in ranks.first_exit()) == (": SIGKILL" in ranks.first_exit()) == (code == 137)


def test_a_rank_that_writes_a_checkpoint_may_finish_it(tmp_path: Path) -> None:
    """Left folders of processes that have ended do not count."""
    write = f"import os, time; os.mkdir(f'{tmp_path}/.00000010.{{os.getpid()}}'); time.sleep(1.5)"
    (tmp_path / ".00000005.1").mkdir()
    started = processes(
        f"{write}; os.rename(f'{tmp_path}/.00000010.{{os.getpid()}}', '{tmp_path}/10'); time.sleep(600)"
    )
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
    ranks = LocalRanks([*started, *processes("raise SystemExit(3)")], 0.2, tmp_path)
    assert watch_ranks(ranks) == 3 and (tmp_path / "10").is_dir() and started[0].poll() == -signal.SIGKILL


def test_ctrl_c_stops_all_ranks_with_a_checkpoint(tmp_path: Path) -> None:
    options = ["strategy=ddp", "trainer.devices=2", "trainer.max_epochs=500", "model.width=8"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    with start_python("-u", "src/train.py", *options, f"paths.results={tmp_path}", env=environ) as process:
        assert process.stdout is not None and process.stderr is not None
        while "epoch 1/500" not in (line := process.stdout.readline()):
            assert line, process.stderr.read()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=200)
    assert process.returncode == 130 and "resume=" in out and "Traceback" not in err, err
    assert json.loads((tmp_path / "latest" / "run.json").read_text())["state"] == "preempted"


def test_ranks_that_are_started_from_outside_are_refused(train: Train, tmp_path: Path) -> None:
    ranks = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    done = train(
        f"paths.results={tmp_path / 'r'}", env={**ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    )
    assert done.returncode == 2
    assert "started as rank 1 of 2" in done.stderr
    assert not (tmp_path / "r").exists()


def test_variables_left_from_a_torchrun_do_not_reach_the_ranks(tmp_path: Path) -> None:
    """With TORCHELASTIC_USE_AGENT_STORE all ranks would wait forever for torchrun's store."""
    left = {
        "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1",
        "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_ADDR": "gone", "MASTER_PORT": "29500",
    }  # fmt: skip
    words = ("model=mlp", "trainer.accelerator=cpu", "trainer.devices=2", "trainer.max_steps=2")
    command = [sys.executable, str(ROOT / "src" / "train.py"), *words, f"paths.results={tmp_path}"]
    process = subprocess.Popen(command, env={**os.environ, **left}, start_new_session=True)
    try:
        assert process.wait(300) == 0
    finally:
        if process.poll() is None:  # it ends its ranks
            process.terminate()
            process.wait(60)
    assert RunDir(tmp_path / "latest").read_info()["world_size"] == 2


FAILS = """
import pathlib
import lightning

class Fails(lightning.Callback):
    def __init__(self, times):
        self.times, self.file = times, pathlib.Path(__file__).with_name("failed")

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        step, before = trainer.global_step, self.file.read_text() if self.file.exists() else ""
        if trainer.global_rank == 0 and step == 4 + 2 * len(before) and len(before) < self.times:
            self.file.write_text(before + "x")
            raise LookupError("row 42")
"""


@pytest.mark.parametrize(("devices", "retries"), [(1, 1), (2, 1), (1, 9)])
@pytest.mark.quick("1-1")
def test_ranks_of_this_machine_start_again(train: Train, tmp_path: Path, devices: int, retries: int) -> None:
    """As in a job: from the newest checkpoint, as often as `cluster.retries` allows."""
    (tmp_path / "fails.py").write_text(FAILS)
    often = f"+callbacks.fails={{_target_:fails.Fails,times:{2 if retries == 1 else 1}}}"
    words = (f"cluster.retries={retries}", f"trainer.devices={devices}", "model=mlp", "trainer.max_steps=12")
    every = ("checkpoint.every_n_steps=1", "monitor.tensorboard=false", f"paths.results={tmp_path}")
    done = train(*words, *every, often, env={"PYTHONPATH": str(tmp_path)})
    info = json.loads((tmp_path / "latest" / "run.json").read_text())
    assert "again: the ranks failed after step 3: " in done.stderr, done.stderr
    if retries == 1:
        assert done.returncode == 1 and "cluster.retries=1 allows no more" in done.stderr
        page = (
            tmp_path / "latest" / "report.html"
        ).read_text()  # the supervisor writes it after the last retry
        assert done.stdout.count("Report:") == 1 and "LookupError: row 42" in page and "Restarts" in page
        assert (info["state"], len(info["attempts"])) == ("failed", 2)
    else:
        assert done.returncode == 0 and (info["state"], len(info["attempts"])) == ("completed", 2)


KILLED = """
import os, pathlib, time
import lightning

class Killed(lightning.Callback):
    folder = pathlib.Path(__file__).parent

    def on_fit_start(self, trainer, module):
        if trainer.global_rank == 0:
            seen = [str(one) for one in self.folder.glob("latest/report.html")]
            (self.folder / "reports").write_text(str(seen))

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        killed = self.folder / "killed"
        if trainer.global_step == 4 and trainer.global_rank == 1 and not killed.exists():
            killed.write_text("")
            os.kill(os.getpid(), 9)
"""


def test_a_rank_that_lost_another_one_ends_at_once(train: Train, tmp_path: Path) -> None:
    """The supervisor takes the cause from the killed rank. Reports wait for the last restart."""
    (tmp_path / "ends.py").write_text(KILLED)
    words = ("cluster.retries=1", "trainer.devices=2", "model=mlp", "trainer.max_steps=8", "strategy=ddp")
    every = ("checkpoint.every_n_steps=1", "monitor.tensorboard=false", f"paths.results={tmp_path}")
    done = train(*words, *every, "+callbacks.ends._target_=ends.Killed", env={"PYTHONPATH": str(tmp_path)})
    info = json.loads((tmp_path / "latest" / "run.json").read_text())
    assert done.returncode == 0 and info["state"] == "completed", done.stderr
    first, second = info["attempts"]
    assert first["reason"].startswith("rank 1 on ") and "SIGKILL" in first["reason"]
    assert done.stderr.count("stops: the connection to another rank was lost") == 1
    assert "Traceback" not in done.stderr and (tmp_path / "reports").read_text() == "[]"
    assert first["restart"]["stop"] < 60 and second["seconds"]["first"] > 0


def test_ranks_that_cannot_be_forks_are_new_interpreters(make_config, tmp_path, monkeypatch, capfd):
    """The log has the reason once."""
    monkeypatch.setattr(launch, "fork_server", lambda *_: ForkServer(["no_such_module"]))
    monkeypatch.setattr(launch, "build_rank_command", lambda *_: [sys.executable, "-c", ""])
    place = LocalRun(RunDir(tmp_path), make_config("cluster.retries=1"), 2)
    for number in (0, 1):
        ranks = place.start(number)
        while (code := ranks.poll()) is None:
            time.sleep(0.05)
        assert code == 0
    line = "The ranks start as new interpreters: the process that imports the framework has ended.\n"
    assert capfd.readouterr().err == line
