"""Whole runs of one rank."""

import logging
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy

from src.data.digits import open_digits
from src.tasks.lightning.classification import Classification
from train_anywhere.checkpoints.disk.manifest import CheckpointInfo
from train_anywhere.checkpoints.store import CheckpointStore, Retention
from train_anywhere.errors import CheckpointError
from train_anywhere.files import ROOT
from train_anywhere.job.rank_process import SIGNALS
from train_anywhere.training.plan import build_network

from .conftest import Fit, MakeRun, final_state, load_state

SHORT = ("model=mlp", "trainer.max_epochs=2", "monitor.progress=none")


def test_the_best_weights_are_tested(make_run: MakeRun, fit: Fit) -> None:
    """A learning rate that grows wild makes the last weights worse than the first ones."""
    config, run = make_run(
        *SHORT, "trainer.max_epochs=3", "optimizer.lr=1", "schedule=constant", "schedule.warmup_epochs=2"
    )
    outcome = fit(config, run)
    store = CheckpointStore(run.checkpoints, Retention("max", 2))
    best, newest = store.best(), store.newest_good()
    assert best and newest
    assert best.value is not None and newest.value is not None and best.value > newest.value
    network = build_network(config, {"shape": (8, 8, 1), "outputs": 10})
    weights = load_state(best.path)["state_dict"]
    network.load_state_dict({name.removeprefix("network."): value for name, value in weights.items()})
    network.eval()
    test = open_digits().test
    images, labels = test.read(torch.arange(len(test)).numpy(), 0, False)
    answers = network(torch.from_numpy(images).permute(0, 3, 1, 2)).argmax(1)
    right = (answers == torch.from_numpy(labels)).float().mean().item()
    assert outcome.metrics["test/acc"] == pytest.approx(right)


def test_metrics_csv_has_one_curve(make_run: MakeRun, fit: Fit) -> None:
    config, run = make_run(*SHORT, "trainer.log_every_n_steps=5", "data.batch_size=96")
    fit(config, run, train=20)
    fit(config, run)
    rows = [line.split(",") for line in run.metrics_csv.read_text().splitlines()[1:]]
    assert [row[0] for row in rows] == ["5", "10", "13", "15", "20", "25", "26", "26"]
    assert [row[1] for row in rows] == ["1"] * 3 + ["2"] * 5
    assert [bool(row[5]) for row in rows] == [False, False, True, False, False, False, True, False]
    assert [bool(row[7]) for row in rows] == [False] * 7 + [True]


def test_nothing_but_the_progress_is_shown(make_run, fit, capfd, recwarn) -> None:
    """Lightning prints no announcements, tips or warnings in either part."""
    config, run = make_run("model=mlp", "trainer.max_epochs=2", "monitor.progress=plain")
    logging.getLogger("lightning.pytorch").setLevel(logging.INFO)
    fit(config, run)
    out, err = capfd.readouterr()
    header = ["Model:", "Data:", "Device:", "Batch:", "Steps:"]
    rows = [line for line in out.splitlines() if line[0] != " "]  # a row of 80 columns continues indented
    assert [row.split()[0] for row in rows] == ["each", *header, "epoch", "epoch"]
    assert err == ""
    assert [str(w.message) for w in recwarn] == []


def test_the_signal_handlers_stay_ours(make_run: MakeRun, fit: Fit) -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    config, run = make_run(*SHORT)
    fit(config, run)
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_the_second_ctrl_c_is_a_ctrl_c(make_run: MakeRun, fit: Fit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning would exit with status 1 and its own message."""

    def twice(*arguments: object) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Classification, "training_step", twice)
    config, run = make_run(*SHORT)
    with pytest.raises(KeyboardInterrupt):
        fit(config, run)


@pytest.mark.parametrize("precision", ["32", "bf16-mixed"])
@pytest.mark.quick("bf16-mixed")
def test_precision(precision: str, make_run: MakeRun, fit: Fit) -> None:
    """Weights are float32 with any. The products differ in their third digit."""
    config, run = make_run(*SHORT, f"trainer.precision={precision}")
    loss = fit(config, run).metrics["val/loss"]
    assert {v.dtype for v in final_state(run)["state_dict"].values()} == {torch.float32}
    config, run = make_run(*SHORT)
    plain = fit(config, run).metrics["val/loss"]
    assert (loss == plain) is (precision == "32")
    assert loss == pytest.approx(plain, rel=0.05)


def test_the_checkpoint_of_the_other_framework_is_refused(make_run: MakeRun, fit: Fit) -> None:
    config, run = make_run(*SHORT)
    store = CheckpointStore(run.checkpoints, Retention("max", 1))
    store.write(lambda folder: None, CheckpointInfo(3, 0, 3, {}, None, "keras"))
    with pytest.raises(CheckpointError, match="framework=keras"):
        fit(config, run)


def test_checkpoints_within_an_epoch(make_run: MakeRun, fit: Fit) -> None:
    config, run = make_run(
        *SHORT,
        "data.batch_size=96",
        "checkpoint.every_n_steps=5",
        "checkpoint.every_n_epochs=2",
        "checkpoint.keep_last=9",
    )
    fit(config, run)
    steps = [s.step for s in CheckpointStore(run.checkpoints, Retention("max", 9)).all()]
    assert steps == [5, 10, 15, 20, 25, 26]


@pytest.mark.slow
def test_tensorflow_is_never_loaded(make_run: MakeRun, tmp_path: Path) -> None:
    """Not by tensorboard either, which takes its file functions from TensorFlow where it can."""
    _, run = make_run(*SHORT)
    code = f"""
import sys
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "engine")!r}]
from train_anywhere.launch.rank import run_rank
assert run_rank({str(run.path)!r}) == 0
assert sorted(set(sys.modules) & {{"tensorflow", "keras", "jax"}}) == []
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert list(run.tensorboard.glob("events.*"))


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.quick("fsdp")
def test_no_thread_of_the_process_group_outlives_the_training(strategy, make_run, fit) -> None:
    """One that is still at work when Python ends would abort the process."""
    config, run = make_run(*SHORT, f"strategy={strategy}", "trainer.devices=1", "trainer.accelerator=cpu")
    fit(config, run, train=1)
    fit(config, run)
    assert not [name for name in thread_names() if "gloo" in name]


def thread_names() -> list[str]:
    """Return the system's names of the threads of this process."""
    return [(thread / "comm").read_text().strip() for thread in Path("/proc/self/task").iterdir()]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.quick("ddp")
def test_no_rank_waits_for_the_others_after_a_checkpoint(strategy, make_run, fit, monkeypatch) -> None:
    """Lightning has a barrier there. All its other barriers are reached."""
    waited: list[str] = []

    def barrier(self: DDPStrategy, *names: Any) -> None:
        waited.extend(names)

    monkeypatch.setattr(DDPStrategy, "barrier", barrier)
    config, run = make_run(
        "model=mlp",
        f"strategy={strategy}",
        "trainer.devices=1",
        "trainer.accelerator=cpu",
        "trainer.max_epochs=2",
        "monitor.progress=none",
    )
    fit(config, run)
    assert len(CheckpointStore(run.checkpoints, Retention("max", 9)).all()) == 2
    assert waited
    assert not [name for name in waited if "checkpoint" in str(name)]
