"""A loss that is not a number any more."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from train_anywhere.errors import NotFiniteError
from train_anywhere.features.observers import NanWatch
from train_anywhere.files.atomic import dumps
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.summary import find_nonfinite_loss
from train_anywhere.training.early_stopping import checkpoint_score

Train = Callable[..., "CompletedProcess[str]"]


def test_it_warns_once_with_the_step_and_what_to_try(tmp_path, capsys) -> None:
    watch = NanWatch("warn", RunDir(tmp_path))
    watch.after_validation(20, {"train/loss": 0.5, "lr": math.inf})
    assert capsys.readouterr().err == ""
    for step in (40, 60):
        watch.after_validation(step, {"train/loss": math.nan})
    assert capsys.readouterr().err == (
        "warning: train/loss is nan at step 40: training continues, but can't recover; try a lower "
        "optimizer.lr, trainer.gradient_clip_val=1.0, or trainer.precision=32 instead of 16-mixed.\n"
    )


def test_it_stops_where_it_should(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(
        NotFiniteError, match=r"val/loss is inf at step 3, and trainer\.detect_nan=stop ends the run"
    ):
        NanWatch("stop", None).after_validation(3, {"val/loss": math.inf})
    NanWatch("off", RunDir(tmp_path)).after_validation(3, {"val/loss": math.inf})
    NanWatch("warn", None).after_validation(3, {"val/loss": math.inf})
    assert capsys.readouterr().err == ""


def test_weights_with_such_a_loss_are_not_the_best() -> None:
    assert checkpoint_score({"train/loss": 1.0, "val/acc": 0.5}, "val/acc") == 0.5
    assert checkpoint_score({"train/loss": math.nan, "val/acc": 0.9}, "val/acc") is None
    assert checkpoint_score({"train/loss": 1.0}, "val/acc") is None
    assert find_nonfinite_loss({"test/loss": None}) == "test/loss"


def strict(text: str) -> Any:
    """Return the values that a strict JSON reader reads."""
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def test_json_stays_json() -> None:
    assert strict(dumps({"a": [math.nan, {"b": -math.inf}], "c": 1.5, "d": "nan"})) == {
        "a": [None, {"b": None}],
        "c": 1.5,
        "d": "nan",
    }


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["lightning", "keras"])
def test_a_run_that_ends_with_nan_says_so(train: Train, tmp_path: Path, framework: str) -> None:
    done = train(
        f"framework={framework}",
        "model=mlp",
        "model.hidden=[8]",
        "data.batch_size=48",  # 28 steps an epoch
        "trainer.max_steps=16",
        "trainer.log_every_n_steps=8",
        "trainer.limit_val_batches=1",
        "optimizer=sgd",
        "optimizer.lr=1e6",
        "schedule=constant",
        f"paths.results={tmp_path}",
    )
    assert done.returncode == 3, done.stderr
    assert done.stderr.count("train/loss is nan at step 8") == 1
    assert "the final train/loss is not a number" in done.stdout
    run = tmp_path / "latest"
    info = strict((run / "run.json").read_text())
    assert (info["state"], info["metrics"]["train/loss"]) == ("completed", None)
    (manifest,) = (run / "checkpoints").glob("*/manifest.json")
    assert strict(manifest.read_text())["value"] is None
    before = (run / "run.json").read_bytes()
    again = train(f"resume={run}")
    assert again.returncode == 0, again.stderr
    assert "is complete" in again.stdout
    assert (run / "run.json").read_bytes() == before
