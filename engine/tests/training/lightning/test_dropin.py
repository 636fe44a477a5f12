"""A user's LightningModule reports metrics and resumes bit for bit. The differential test compares it with a plain Trainer."""

import json
from pathlib import Path

import pytest

from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError, DataError
from train_anywhere.runs.folder import RunDir

from .conftest import Fit, MakeRun

HERE = "engine.tests.training.lightning.strangers"


@pytest.fixture
def stranger(make_run: MakeRun) -> MakeRun:
    """`stranger("Plain", "rows", "seed=2")`: a run of a user's module and data set."""

    def make(module: str, data: str, *overrides: str) -> tuple[Config, RunDir]:
        names = (f"task._target_={HERE}.{module}", f"data._target_={HERE}.{data}")
        short = (
            "data.batch_size=10",
            "trainer.max_epochs=3",
            "monitor.progress=none",
            "trainer.log_every_n_steps=3",
        )
        return make_run(*names, *short, "trainer.accelerator=cpu", *overrides)

    return make


def last_rows(run: RunDir, count: int) -> list[dict[str, str]]:
    import csv

    return list(csv.DictReader(run.metrics_csv.read_text().splitlines()))[-count:]


def test_metrics_arrive_everywhere_under_their_names(stranger: MakeRun, fit: Fit, tmp_path: Path) -> None:
    """metrics.csv, TensorBoard, every logger, the outcome, the best checkpoint."""
    config, run = stranger(
        "Plain", "rows", "checkpoint.monitor=val_mae", "checkpoint.mode=min",
        "loggers.one._target_=lightning.pytorch.loggers.CSVLogger",
        "callbacks.lr._target_=lightning.pytorch.callbacks.LearningRateMonitor",
    )  # fmt: skip
    outcome = fit(config, run)
    names = {"train_loss_step", "train_loss_epoch", "val_loss", "val_mae", "for_callbacks", "test_loss"}
    assert names <= outcome.metrics.keys()
    told = json.loads((run.path / "monitor" / "live.json").read_text())
    assert (told["section"], told["step"], told["steps"]) == ("end", 30, 30)
    assert {"train_loss_step", "val_loss", "val_mae"} <= told["metrics"].keys()
    assert told["checkpoint"]["step"] == 30
    header = run.metrics_csv.read_text().splitlines()[0].split(",")
    assert names | {"lr", "lr-AdamW"} <= set(header)
    rows = last_rows(run, 99)
    assert [r["step"] for r in rows if r["val_mae"]] == ["10", "20", "30"]
    assert [r["step"] for r in rows if r["train_loss_step"]] == [str(n) for n in range(3, 31, 3)]
    theirs = next(p for p in run.path.rglob("metrics.csv") if p != run.metrics_csv)
    logged = theirs.read_text().splitlines()[0].split(",")
    assert {"train_loss_step", "train_loss_epoch", "val_mae", "test_loss", "lr-AdamW"} <= set(logged)
    assert tags(run) >= names - {"for_callbacks"} | {"lr-AdamW"}
    manifests = [json.loads(file.read_text()) for file in run.checkpoints.glob("*/manifest.json")]
    assert manifests and all(entry["value"] is not None for entry in manifests)


def tags(run: RunDir) -> set[str]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.tensorboard))
    events.Reload()
    return set(events.Tags()["scalars"])


def test_what_is_no_plain_value_is_left_out_of_checkpoints(stranger, fit, capfd) -> None:
    config, run = stranger("Plain", "rows", f"callbacks.watch._target_={HERE}.Watch")
    fit(config, run, train=15)
    assert fit(config, run).state == "completed"
    out, err = capfd.readouterr()
    assert (out + err).count("left out of the checkpoints: callbacks.Watch") == 1  # in each process


@pytest.mark.parametrize(
    ("module", "data", "words", "sentence"),
    [
        ("Nothing", "rows", [], "returns a Nothing, which is not a LightningModule"),
        ("Rows", "rows", ["task.length=3"], "returns a Rows, which is not a Lightning"),
        ("Steppless", "rows", [], r"Lightning refuses: No `training_step\(\)` method defined"),
        ("Adversaries", "rows", ["trainer.gradient_clip_val=1.0"], "Lightning refuses: Automatic gradient clipping"),
        ("StepPlateau", "rows", [], "ReduceLROnPlateau that watches train_loss with interval='step'"),
        (
            "Plain", "rows", ["checkpoint.monitor=val_los", "checkpoint.mode=min"],
            "checkpoint.monitor=val_los was not measured. Did you mean 'val_loss'?",
        ),
        ("Plain", "rows", ["data.batch_size=200"], r"data\.batch_size=200"),
        (
            "Plain", "rows", ["callbacks.c._target_=lightning.pytorch.callbacks.OnExceptionCheckpoint", "callbacks.c.dirpath=x"],
            "would write checkpoints that a run can't resume from",
        ),
        ("Plain", "rows", [f"callbacks.c._target_={HERE}.Nothing"], "is not a lightning.pytorch.Callback"),
        ("Plain", "rows", [f"loggers.c._target_={HERE}.Nothing"], r"loggers.c is a Nothing, which has no log_metrics"),
    ],
)  # fmt: skip
@pytest.mark.quick(
    "Plain-rows-words8-is not a lightning.pytorch.Callback",
)
def test_refusals(module, data, words, sentence, stranger, fit) -> None:
    with pytest.raises((ConfigError, DataError), match=sentence):
        config, run = stranger(module, data, *words)
        fit(config, run)
