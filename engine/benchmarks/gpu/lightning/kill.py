"""A training that was killed goes on by the same command, and ends with the bits of one that was not; forks of a warm process."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.gpu.lightning.training import state
from benchmarks.gpu.row import Place, Row, difference, tried
from train_anywhere.files import ROOT
from train_anywhere.launch.forkserver import ForkedProcess
from train_anywhere.launch.processes import fork_server
from train_anywhere.runs.folder import RunDir

WORDS = ("model=mlp", "model.hidden=[256]", "trainer.max_epochs=40", "trainer.precision=bf16-mixed")


def rows(place: Place) -> Iterator[Row]:
    """Two."""
    yield tried("kill -9, then the same command with resume=", lambda: _killed(place))
    yield tried("a fork computes on the device, its parent has not opened it", _forked)


FORK = """
import torch
early = torch.cuda.is_initialized() or torch.cuda._is_in_bad_fork()
ones = torch.ones(600, 600, device="cuda" if torch.cuda.is_available() else "cpu")
raise SystemExit(early or float((ones @ ones).sum()) != 600.0**3)
"""


def _forked() -> str | None:
    with fork_server("lightning", 1) as server:
        started = [server.start([sys.executable, "-c", FORK]) for _ in range(2)]
        forks = all(isinstance(process, ForkedProcess) for process in started)
        return None if forks and not any(process.wait(60) for process in started) else "it does not"


def _killed(place: Place) -> str | None:
    command = [sys.executable, str(ROOT / "src" / "train.py"), *place.words(*WORDS)]
    whole = subprocess.Popen([*command, "name=whole"])
    process = subprocess.Popen([*command, "name=killed"])
    folder = _first_checkpoint(place.folder / "killed", process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    if subprocess.run([sys.executable, command[1], f"resume={folder}"]).returncode or whole.wait():
        return "a training has failed"
    [other] = [path for path in (place.folder / "whole").iterdir() if path.is_dir()]
    return difference(state(RunDir(other)), state(RunDir(folder)))


def _first_checkpoint(runs: Path, process: subprocess.Popen[bytes]) -> Path:
    """The run folder, when it has one."""
    while process.poll() is None:
        for newest in runs.glob("*/checkpoints/newest"):
            return newest.parent.parent
        time.sleep(0.01)
    raise RuntimeError("the training ended without a checkpoint")
