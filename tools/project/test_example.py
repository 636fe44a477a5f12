"""The example of the README trains, and its loss falls."""

import csv
import shlex
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

from train_anywhere.files import ROOT

Train = Callable[..., "CompletedProcess[str]"]


def test_the_loss_falls(train: Train, tmp_path: Path) -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    (command,) = [line for line in lines if "task._target_=examples." in line]
    done = train(*shlex.split(command)[2:], "trainer.max_epochs=3", f"paths.results={tmp_path}")
    assert done.returncode == 0, done.stdout + done.stderr
    with (tmp_path / "latest" / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    (name,) = {"val/loss", "val_loss"} & rows[0].keys()
    losses = [float(row[name]) for row in rows if row[name]]
    assert losses[-1] < losses[0]
