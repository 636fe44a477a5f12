"""A task of version 0.1 trains, resumes and predicts like the model that replaces it, and a line reports it."""

from pathlib import Path

import numpy as np
import pytest

from train_anywhere.runs.folder import open_run

from .test_dropin import run_keras

OLD = "task._target_=engine.tests.training.keras.old_regression.Regression"
WORDS = (
    "framework=keras",
    "task=regression", "data=friedman", "data.length=480", "data.val_length=100", "data.batch_size=48", "model=mlp",
    "model.dropout=0", "trainer.max_epochs=2", "trainer.accelerator=cpu", "monitor.progress=plain",
)  # fmt: skip


def test_an_old_task_is_trained(make_run, capfd: pytest.CaptureFixture[str]) -> None:
    from train_anywhere.training.keras.inference import open_trained_model

    config, run = make_run(*WORDS)
    expected = run_keras(config, run).metrics
    config, run = make_run(*WORDS, OLD, "task.monitors={mae: min, loss: min}")
    first = run_keras(config, run)
    assert "Regression is a task of version 0.1" in capfd.readouterr().out
    for name in ("train/loss", "val/loss", "val/mae", "test/loss", "test/mae"):
        assert first.metrics[name] == pytest.approx(expected[name], rel=1e-4)
    assert run_keras(config, open_run(run.path)).metrics["test/mae"] == first.metrics["test/mae"]
    model = open_trained_model(config, Path(str(first.checkpoint)))
    metrics, rows = model.measure("test", predicting=True)
    assert metrics["test/mae"] == pytest.approx(first.metrics["test/mae"], rel=1e-6)
    assert np.asarray(rows).shape == (100, 1)
