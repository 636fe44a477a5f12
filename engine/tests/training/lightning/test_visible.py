"""User code sees the Trainer's values of a plain Lightning Trainer in the same hook."""

import csv
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from engine.tests.training.tracking.wandb_log import read_history
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError
from train_anywhere.runs.folder import RunDir

from . import visible_strangers as strangers
from .conftest import Fit, MakeRun

HERE = "engine.tests.training.lightning.visible_strangers"
PUBLIC = "engine.tests.training.lightning.public_strangers"


@pytest.fixture
def run(make_run: MakeRun) -> Callable[..., tuple[Config, RunDir]]:
    """`run("Watching", "callbacks.a._target_=...")`: a run of a module that has its own loaders."""

    def make(module: str, *words: str) -> tuple[Config, RunDir]:
        names = [
            f"task._target_={HERE}.{module}",
            "data=module",
            "trainer.max_epochs=2",
            "monitor.progress=none",
        ]
        return make_run(*names, "trainer.accelerator=cpu", *words)

    return make


def test_attributes_of_the_trainer_are_those_of_lightning(run: Any, fit: Fit, tmp_path: Path) -> None:
    config, folder = run(
        "Watching", f"callbacks.a._target_={HERE}.Watcher", f"callbacks.b._target_={HERE}.Other",
        "checkpoint.monitor=val_loss", "trainer.num_sanity_val_steps=2", "trainer.log_every_n_steps=1",
    )  # fmt: skip
    saved = tmp_path / "theirs.ckpt"
    for epochs in (2, 3, 3):  # new, resumed, and resumed with nothing left to train
        saved_before = saved if saved.exists() else None
        strangers.SEEN.clear()
        trainer = pl.Trainer(
            max_epochs=epochs, accelerator="cpu", devices=1, callbacks=[strangers.Watcher(), strangers.Other()],
            default_root_dir=tmp_path / "theirs", enable_progress_bar=False, enable_model_summary=False,
            log_every_n_steps=1,
        )  # fmt: skip
        trainer.callbacks[-1].monitor = "val_loss"
        trainer.fit(module := strangers.Watching(), ckpt_path=saved_before)
        trainer.save_checkpoint(saved)
        trainer.test(module, verbose=False, ckpt_path=saved)
        theirs = dict(strangers.SEEN)
        strangers.SEEN.clear()
        fit(replace(config, trainer=replace(config.trainer, max_epochs=epochs)), folder)
        assert saved_before is not None or theirs.keys() == strangers.SEEN.keys()
        # what else a resumed run shows is that of an uninterrupted one
        names = {"ckpt_path", "num_val_batches", "num_sanity_val_batches", "val_dataloaders"}
        different = {
            f"{hook}: {name}": (value, strangers.SEEN[hook][name])
            for hook in theirs.keys() & strangers.SEEN.keys()
            for name, value in theirs[hook].items()
            if (not saved_before or name in names) and value != strangers.SEEN[hook][name]
        }
        assert (epochs, different) == (epochs, {})


def test_a_run_keeps_its_own_callbacks_if_user_code_assigns_others(run: Any, fit: Fit) -> None:
    words = [f"callbacks.{n}._target_={HERE}.{name}" for n, name in (("a", "Replaces"), ("b", "Other"))]
    outcome = fit(*run("Plain", *words, "trainer.max_epochs=1"))
    assert outcome.checkpoint and strangers.SEEN.pop("limits")["max_epochs"] == 1
    with pytest.raises(ConfigError, match="removed this project's callbacks"):
        fit(*run("Plain", f"callbacks.a._target_={HERE}.Drops", "trainer.max_epochs=1"))


def test_a_checkpoint_callback_of_the_user_works(run: Any, fit: Fit, tmp_path: Path) -> None:
    saver = f"callbacks.a={{_target_: lightning.pytorch.callbacks.ModelCheckpoint, dirpath: {tmp_path}, monitor: val_loss, filename: own}}"
    words = [saver, f"callbacks.b._target_={HERE}.Saver", "checkpoint.keep_last=1"]
    config, folder = run("Watching", *words)
    outcome = fit(config, folder)
    assert Path(strangers.SEEN.pop("saver")) == tmp_path / "own.ckpt" and outcome.checkpoint
    assert strangers.Watching.load_from_checkpoint(tmp_path / "own.ckpt")
    state = torch.load(tmp_path / "own.ckpt", weights_only=True)
    assert state["optimizer_states"] and any(
        name.startswith("ModelCheckpoint") for name in state["callbacks"]
    )
    longer = replace(config, trainer=replace(config.trainer, max_epochs=3))
    assert fit(longer, folder).state == "completed"
    assert [file.name for file in tmp_path.glob("*.ckpt")] == [
        "own.ckpt"
    ]  # the resumed callback replaces its file


def test_two_callbacks_with_one_state_are_refused(run: Any, fit: Fit) -> None:
    words = [
        f"callbacks.{n}={{_target_: lightning.pytorch.callbacks.EarlyStopping, monitor: x}}" for n in "ab"
    ]
    with pytest.raises(ConfigError, match=r"callbacks\.b and callbacks\.a have the same state_key"):
        fit(*run("Plain", *words))


def test_limits_of_a_fast_run_are_those_of_lightning(run: Any, fit: Fit, tmp_path: Path) -> None:
    trainer = pl.Trainer(
        fast_dev_run=True, accelerator="cpu", callbacks=[strangers.Limits()], default_root_dir=tmp_path,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(strangers.Plain())
    theirs = strangers.SEEN.pop("limits")
    fit(*run("Plain", "trainer.fast_dev_run=true", f"callbacks.a._target_={HERE}.Limits"))
    assert strangers.SEEN.pop("limits") == theirs


@pytest.fixture
def public(make_run: MakeRun, fit: Fit) -> Callable[..., RunDir]:
    """`public("Gan", "loggers=wandb")`: the folder of a finished run of public code."""

    def train(module: str, *words: str) -> RunDir:
        names = [
            f"task._target_={PUBLIC}.{module}",
            "data=module",
            "trainer.max_epochs=2",
            "monitor.progress=none",
        ]
        config, folder = make_run(*names, "trainer.accelerator=cpu", *words)
        fit.outcome = fit(config, folder)  # type: ignore[attr-defined]
        assert fit.outcome.state == "completed"  # type: ignore[attr-defined]
        return folder

    return train


def columns(run: RunDir) -> dict[str, list[str]]:
    """The cells of metrics.csv that are not empty, by column."""
    rows = list(csv.DictReader(run.metrics_csv.open()))
    return {name: [row[name] for row in rows if row[name]] for name in rows[0]}


def test_pictures_are_drawn_for_all_loggers(public: Any) -> None:
    run = public("Draws")
    events = EventAccumulator(str(run.tensorboard), size_guidance={"images": 0}).Reload()
    assert [image.step for image in events.Images("generated_images")] == [0, 1]
    assert {"g_loss", "d_loss"} <= columns(run).keys()


def test_a_module_logs_to_the_run_of_wandb(public: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = public("Tracked", "loggers=wandb", "loggers.wandb.offline=true", "trainer.log_every_n_steps=2")
    logged = list(read_history(next(run.path.glob("wandb/offline-run-*/*.wandb"))))
    assert [row["custom"] for row in logged if "custom" in row] == [0, 1, 2, 3] * 2
    assert [row["by_hand"] for row in logged if "by_hand" in row] == [0, 2, 4, 6] * 2
    assert len([row for row in logged if "train_loss" in row]) >= 2
    assert (
        columns(run)["by_hand"] and columns(run)["lr-SGD"]
    )  # values of callbacks and modules reach the file


def test_a_module_logs_to_the_run_of_mlflow(public: Any) -> None:
    run = public("Tracked", "loggers=mlflow", "loggers.mlflow.offline=true", "+task.tracker=mlflow")
    histories = [file for file in (run.path / "mlruns").rglob("custom") if file.parent.name == "metrics"]
    assert [float(line.split()[1]) for line in histories[0].read_text().splitlines()] == [0, 1, 2, 3] * 2


def test_batches_that_are_objects_train(public: Any) -> None:
    run = public("Graphs", f"data._target_={PUBLIC}.GraphData")
    assert {"train_loss", "val_loss", "test_loss"} <= columns(run).keys()
    assert len(columns(run)["train_loss"]) == 2  # one for each epoch, although log_every_n_steps is more


@pytest.mark.parametrize(
    ("how", "steps", "who"),
    [
        ("hook", 3, "user code"),
        ("callback", 4, "EarlyStopping"),
        ("skip", 6, "a -1 or StopIteration of Ending"),
        ("iterator", 6, "a -1 or StopIteration of Ending"),
        ("nothing", 8, None),
    ],
)
def test_a_run_that_user_code_ends_says_who(how, steps, who, public, fit, capsys) -> None:
    run = public("Ending", f"+task.how={how}", "monitor.progress=plain")
    line = f"{who} ended training after step {steps} of 8" if who else None
    assert fit.outcome.ended_by == line and fit.outcome.step == steps
    printed = capsys.readouterr().out
    assert (line in printed) if line else "ended training" not in printed
    assert f"step {steps}/8" in printed and f"step {steps + 1}/8" not in printed
    assert columns(run)["step"][-1] == str(steps)


def test_the_words_of_callbacks_are_shown_and_those_of_loops_are_not(capfd) -> None:
    code = """if True:
        from lightning.pytorch.callbacks import early_stopping
        from lightning.pytorch.trainer import setup
        from lightning.pytorch.tuner import lr_finder
        from train_anywhere.training.lightning.setup import silence_lightning
        silence_lightning()
        silence_lightning()
        for module in (setup, early_stopping, lr_finder):
            exec(compile("from lightning.pytorch.utilities.rank_zero import rank_zero_info\\n"
                "def one(): rank_zero_info('info of ' + __name__)\\none()", module.__file__, "exec"), vars(module))
        lr_finder.log.info("Learning rate set to 1")
    """
    subprocess.run([sys.executable, "-c", code], check=True)
    shown = capfd.readouterr().err
    assert "info of lightning.pytorch.trainer.setup" not in shown
    assert shown.count("info of lightning.pytorch.callbacks.early_stopping") == 1
    assert shown.count("Learning rate set to 1") == 1


def test_a_resume_of_a_pruned_model_is_a_line(make_run, fit, capsys) -> None:
    pruning = (
        "callbacks.p._target_=lightning.pytorch.callbacks.ModelPruning callbacks.p.pruning_fn=l1_unstructured"
    )
    words = [f"task._target_={PUBLIC}.Graphs", f"data._target_={PUBLIC}.GraphData", *pruning.split()]
    short = [
        "trainer.max_epochs=2",
        "trainer.limit_test_batches=0",
        "trainer.accelerator=cpu",
        "monitor.progress=plain",
    ]
    config, run = make_run(*words, *short)
    fit(config, run)
    assert "without their masks" not in capsys.readouterr().out
    fit(replace(config, trainer=replace(config.trainer, max_epochs=3)), run)
    assert "without their masks" in capsys.readouterr().out


def test_the_steps_of_a_finder_of_learning_rates_are_not_logged(public: Any) -> None:
    finder = "callbacks.f._target_=lightning.pytorch.callbacks.LearningRateFinder"
    steps = (
        "callbacks.f.num_training_steps=5",
        "trainer.log_every_n_steps=1",
        f"data._target_={PUBLIC}.GraphData",
    )
    run = public("Finding", finder, *steps)
    assert [int(step) for step in columns(run)["step"]] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10]
    assert len({*columns(run)["train_lr"]}) == 1


def test_hooks_of_the_engine_are_not_the_users(run: Any, fit: Fit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are copied before a test only if a user's hook could change them."""
    copied = []
    monkeypatch.setattr(
        "train_anywhere.training.lightning.dropin.validated_weights.copy_weights",
        lambda m: copied.append(m) or {},
    )
    fit(*run("Plain", "trainer.max_epochs=1"))
    assert not copied
    fit(*run("Plain", f"callbacks.a._target_={HERE}.TestStarts", "trainer.max_epochs=1"))
    assert copied
