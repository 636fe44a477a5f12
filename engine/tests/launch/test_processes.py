"""Ranks on this machine: they get their ranks, are watched, and end together."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from train_anywhere.files import ROOT
from train_anywhere.launch.processes import LocalRanks

Train = Callable[..., "CompletedProcess[str]"]


def processes(*programs: str) -> list["subprocess.Popen[bytes]"]:
    return [subprocess.Popen([sys.executable, "-c", p], start_new_session=True) for p in programs]


def watch_ranks(started: list["subprocess.Popen[bytes]"], grace: float = 15.0) -> int:
    ranks = LocalRanks(started, grace)
    while (code := ranks.poll()) is None:
        time.sleep(0.05)
    return code


def test_all_done_is_zero() -> None:
    assert watch_ranks(processes("pass", "import time; time.sleep(0.3)")) == 0


def test_a_failed_rank_is_named_and_the_others_are_ended(capfd: pytest.CaptureFixture[str]) -> None:
    started = processes("import time; time.sleep(600)", "import sys; sys.exit(9)")
    assert watch_ranks(started, grace=0.5) == 9
    assert "rank 1 of 2 ended with exit code 9; the other ranks were stopped." in capfd.readouterr().err
    assert started[0].poll() == -signal.SIGKILL


def test_a_killed_rank_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    started = processes(
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "import time; time.sleep(600)"
    )
    assert watch_ranks(started, grace=0.5) == 128 + signal.SIGKILL
    assert "rank 0 of 2 ended with signal SIGKILL" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.new_process
def test_two_ranks_train_together(train: Train, tmp_path: Path) -> None:
    options = (
        "strategy=ddp",
        "trainer.devices=2",
        "trainer.max_epochs=2",
        "model.width=8",
        "monitor.ranks=true",
    )
    done = train(*options, f"paths.results={tmp_path}")
    assert done.returncode == 0, done.stderr
    info = json.loads((tmp_path / "latest" / "run.json").read_text())
    assert (info["strategy"], info["world_size"], info["state"]) == ("ddp", 2, "completed")
    for rank in range(2):
        assert f"rank {rank} of 2: local rank {rank} of 2" in done.stdout
    assert done.stdout.count("test/acc 0.") == 1


@contextmanager
def long_training(results: Path) -> Iterator["subprocess.Popen[str]"]:
    """A training with two ranks, after its first epoch."""
    options = ["strategy=ddp", "trainer.devices=2", "trainer.max_epochs=500", "model.width=8"]
    command = [sys.executable, "-u", str(ROOT / "src" / "train.py"), *options, f"paths.results={results}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        while "epoch 1/500" not in (line := process.stdout.readline()):
            assert line, process.stderr.read()
        yield process


def test_ctrl_c_stops_all_ranks_with_a_checkpoint(tmp_path: Path) -> None:
    with long_training(tmp_path) as process:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "resume=" in out
    assert "Traceback" not in err
    assert json.loads((tmp_path / "latest" / "run.json").read_text())["state"] == "preempted"


@pytest.mark.slow
def test_a_rank_killed_in_the_middle_ends_the_run_and_is_named(tmp_path: Path) -> None:
    with long_training(tmp_path) as process:
        ranks = subprocess.run(
            ["pgrep", "-f", "--", f"train.py --run {tmp_path}"], capture_output=True, text=True
        ).stdout.split()
        os.kill(int(ranks[-1]), signal.SIGKILL)
        _, err = process.communicate(timeout=120)
    assert process.returncode not in (0, 75, 130)
    assert "rank 1 of 2 ended with signal SIGKILL" in err


def test_ranks_that_are_started_from_outside_are_refused(train: Train, tmp_path: Path) -> None:
    ranks = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    done = train(
        f"paths.results={tmp_path / 'r'}", env={**ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    )
    assert done.returncode == 2
    assert "started as rank 1 of 2" in done.stderr
    assert not (tmp_path / "r").exists()


def test_variables_left_from_a_torchrun_do_not_reach_the_ranks(tmp_path: Path) -> None:
    """With TORCHELASTIC_USE_AGENT_STORE all ranks would wait for ever for a store that torchrun keeps."""
    left = {
        "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1",
        "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_ADDR": "gone", "MASTER_PORT": "29500",
    }  # fmt: skip
    options = [
        "trainer.devices=2",
        "trainer.max_epochs=1",
        "trainer.max_steps=2",
        f"paths.results={tmp_path}",
    ]
    command = [sys.executable, str(ROOT / "src" / "train.py"), *options]
    process = subprocess.Popen(command, env={**os.environ, **left}, start_new_session=True)
    try:
        assert process.wait(90) == 0
    finally:
        if process.poll() is None:  # it ends its ranks
            process.terminate()
            process.wait(60)


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
        assert (info["state"], len(info["attempts"])) == ("failed", 2)
    else:
        assert done.returncode == 0 and (info["state"], len(info["attempts"])) == ("completed", 2)
