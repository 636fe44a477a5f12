"""Attempts of one run in separate processes, with the trackers' real packages."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from train_anywhere.files import ROOT

Attempt = Callable[..., "subprocess.CompletedProcess[str]"]

SMALL = ("task=regression", "model=mlp", "data=friedman", "cluster.site.internet=false")
"""A table: no framework is needed to log."""


@pytest.fixture(autouse=True)
def packages(require: Callable[[object, str], None]) -> None:
    """Both trackers are installed."""
    for name in ("wandb", "mlflow"):
        require(find_spec(name), f"pip install -r requirements/dev.txt: the tests use {name}")


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    """`attempt(run, 1, 30, "killed", "loggers=wandb")`: log 30 steps of the run, then a kill."""

    def make(
        run: Path, first: int, last: int, end: str, *overrides: str, wrap: tuple[str, ...] = (), **env: str
    ) -> subprocess.CompletedProcess[str]:
        run.mkdir(parents=True, exist_ok=True)
        script = [sys.executable, "-m", "engine.tests.training.tracking.attempt"]
        command = [*wrap, *script, str(run), str(first), str(last), end, *SMALL, *overrides]
        home = tmp_path / "home"
        home.mkdir(exist_ok=True)
        around = {k: v for k, v in os.environ.items() if not k.startswith(("WANDB", "MLFLOW", "XDG_"))}
        around |= {"HOME": str(home), "TMPDIR": str(tmp_path), **env}
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=around, cwd=ROOT)
        assert done.returncode == (-9 if end == "killed" else 0), done.stdout + done.stderr
        return done

    return make


def once(steps: int) -> Counter[tuple[str, int]]:
    """Return the complete log of a run of that many steps, without repetition."""
    names = ("train/loss", "lr")
    return Counter({**{(n, s): 1 for s in range(1, steps + 1) for n in names}, ("test/loss", steps): 1})
