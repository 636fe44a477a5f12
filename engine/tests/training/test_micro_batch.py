"""Batches that are computed in parts: `trainer.micro_batch`."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Train = Callable[..., subprocess.CompletedProcess[str]]
WORDS = (
    "model=mlp", "model.dropout=0", "trainer.max_epochs=1", "monitor.tensorboard=false", "monitor.progress=plain",
)  # fmt: skip


@pytest.mark.parametrize("framework", ["lightning", "keras"])
def test_parts_give_the_losses_of_whole_batches(train: Train, tmp_path: Path, framework: str) -> None:
    """Two ranks with the parts of a batch have the rows of one rank with the whole batch."""
    losses = {}
    for devices, rows in ((1, 96), (2, 24)):
        words = (f"trainer.devices={devices}", f"trainer.micro_batch={rows}", f"paths.results={tmp_path}")
        done = train(f"framework={framework}", *WORDS, *words)
        assert done.returncode == 0, done.stderr
        metrics = json.loads((tmp_path / "latest" / "run.json").read_text())["metrics"]
        losses[devices, rows] = (metrics["val/loss"], metrics["test/loss"])
    assert losses[2, 24] == pytest.approx(losses[1, 96], rel=1e-6), losses
    refused = train(*WORDS, "trainer.micro_batch=36", f"paths.results={tmp_path / 'none'}")
    assert refused.returncode == 2 and "use trainer.micro_batch=32." in refused.stderr
