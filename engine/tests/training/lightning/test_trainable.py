"""Trained parameters and layer modes are the same after a resume, on one rank and two."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils.data import default_collate

from tools.testing.weights import final_weights, largest_difference
from train_anywhere.config.schema import Config
from train_anywhere.distributed.packages import horovod_problem
from train_anywhere.runs.folder import RunDir
from train_anywhere.training.lightning.inference import open_trained_model

from .conftest import Fit, MakeRun, assert_resumes, final_state
from .test_dropin_ranks import train, train_runs
from .test_resume import EVERYTHING
from .weights_strangers import Parted, rows

HERE = "engine.tests.training.lightning.weights_strangers"
LIGHTNING = "lightning.pytorch.callbacks"
BACKBONE = (
    f"callbacks.c._target_={LIGHTNING}.BackboneFinetuning",
    "callbacks.c.unfreeze_backbone_at_epoch=1",
)
EMA = (f"callbacks.c._target_={LIGHTNING}.EMAWeightAveraging", "callbacks.c.decay=0.8")
SWA = (
    f"callbacks.c._target_={LIGHTNING}.StochasticWeightAveraging",
    "callbacks.c.swa_lrs=0.05",
    "callbacks.c.swa_epoch_start=1",
)
CASES: dict[str, tuple[str, ...]] = {
    "BackboneFinetuning": ("Parted", *BACKBONE),
    "a callback of one's own": ("Parted", f"callbacks.c._target_={HERE}.Thawing"),
    "in on_train_epoch_start": ("Unfreezing",),
    "in the middle of an epoch": ("Unfreezing", "task.at=on_train_batch_start"),
    "freezing": ("Freezing",),
    "averages": ("Parted", *EMA),
    "averages at the end": ("Parted", *SWA, "task.norm=false"),
    "averages and normalization": ("Parted", *SWA),
    "averages of its own": ("Averaging",),
    "averages beside a copy": ("Averaging", "task.swap=false"),
    "merged": ("Merging",),
    "merged last": ("Merging", "task.at=on_fit_end"),
    "pruned": ("Pruning",),
}
STOPS = {
    "in an epoch": {"train": 15},
    "at its end": {"train": 20},
    "in a validation": {"val": 6},
    "in the last validation": {"val": 10},
}


@pytest.fixture
def stranger(make_run: MakeRun) -> MakeRun:
    """`stranger("Parted", "seed=2")`: a run of a module of `weights_strangers`."""

    def make(module: str, *overrides: str) -> tuple[Config, RunDir]:
        names = (f"task._target_={HERE}.{module}", f"data._target_={HERE}.rows", "data.batch_size=10")
        short = ("trainer.max_epochs=3", "monitor.progress=none", "trainer.accelerator=cpu")
        return make_run(*names, *short, *overrides)

    return make


@pytest.mark.parametrize(
    ("case", "place"),
    [(case, "in an epoch") for case in CASES]
    + [(case, place) for case in ("BackboneFinetuning", *list(CASES)[5:]) for place in list(STOPS)[1:]],
)
@pytest.mark.quick("BackboneFinetuning-in an epoch")
def test_stop_and_resume_changes_no_bit(case: str, place: str, stranger: MakeRun, fit: Fit) -> None:
    words = (*CASES[case], "data.noise=0.1", "task.dropout=0.3")
    assert_resumes(stranger, fit, words, **STOPS[place])


def run_of(folder: Path, case: str, *words: str) -> tuple[Any, ...]:
    """One run for `train_runs`."""
    module, *chosen = CASES[case]
    names = (f"task._target_={HERE}.{module}", f"data._target_={HERE}.rows", "task.norm=false")
    return folder, *names, *chosen, "trainer.max_epochs=3", "checkpoint.keep_last=9", *words


STOP = (f"callbacks.s._target_={HERE}.Stopping", "callbacks.s.step=14")
DDP = ("strategy=ddp", "trainer.devices=2")


QUICK = ["BackboneFinetuning", "averages at the end"]
SLOW = [c for c in CASES if c not in (*QUICK, "in the middle of an epoch", "averages and normalization")]


FEW = ["BackboneFinetuning", "in on_train_epoch_start"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "cases"),
    [("ddp", QUICK), ("ddp", SLOW), ("fsdp", FEW), pytest.param("horovod", FEW, marks=pytest.mark.horovod)],
)
def test_two_ranks_train_and_resume_as_one(strategy, cases, require, tmp_path) -> None:
    require(strategy != "horovod" or not horovod_problem("torch"), "run `make horovod`")
    runs, words = [], (f"strategy={strategy}", "trainer.devices=2")
    for case in cases:
        runs += [run_of(tmp_path / f"{case} whole", case, *words)]
        runs += [run_of(tmp_path / f"{case} parts", case, *words, *more) for more in (STOP, ())]
    for together in [runs] if strategy == "ddp" else [[run] for run in runs]:
        train_runs(2, together)
    train_runs(1, [run_of(tmp_path / f"{case} alone", case, "strategy=single") for case in cases])
    for case in cases:
        whole, parts, alone = (
            final_weights(tmp_path / f"{case} {how}") for how in ("whole", "parts", "alone")
        )
        assert (tmp_path / f"{case} parts" / "checkpoints" / "00000015").is_dir(), case
        assert largest_difference(whole, parts) == 0, case
        assert largest_difference(whole, alone) < 1e-5, case


@pytest.mark.slow
def test_what_two_ranks_do_not_train_together_ends_the_run_at_once(tmp_path: Path) -> None:
    late, one = train_runs(
        2,
        [
            run_of(tmp_path / "late", "in the middle of an epoch", *DDP),
            run_of(tmp_path / "one", "in on_train_epoch_start", *DDP, "task.ranks=[1]"),
        ],
    )
    begin = "layers.0.0.weight, layers.0.0.bias became trainable in epoch 1, batch 2"
    differs = "requires_grad of layers.0.0.bias, layers.0.0.weight on rank 1 differs from rank 0"
    for rank in late:
        assert rank["error"].startswith(begin)
    for rank in one:
        assert differs in rank["error"]
        assert rank["kind"] == "RanksDifferError"


@pytest.mark.parametrize("found", [None, "true"])
@pytest.mark.slow
def test_unused_parameters(found: str | None, tmp_path: Path) -> None:
    words = () if found is None else (f"trainer.find_unused_parameters={found}",)
    ranks = train(tmp_path, 2, "Plain", "rows", *DDP, f"task._target_={HERE}.Spare", *words)
    for rank in ranks:
        assert ("use trainer.find_unused_parameters=true" in rank.get("error", "")) == (found is None), rank


@pytest.mark.parametrize("case", list(CASES)[5:])
@pytest.mark.quick("pruned", "merged", "averages of its own")
def test_one_model_is_validated_tested_evaluated_and_exported(case, stranger, fit, tmp_path) -> None:
    config, run = stranger(*CASES[case], "checkpoint.monitor=val_loss")
    outcome = fit(config, run)
    folder = run.checkpoints / (run.checkpoints / "best").read_text().strip()
    validated = pytest.approx(json.loads((folder / "manifest.json").read_text())["value"], rel=1e-5)
    assert outcome.metrics["test_loss"] == validated
    trained = open_trained_model(config, folder)
    for split in ("test", "val", "test"):
        assert trained.measure(split)[0][f"{split}_loss"] == validated
    trained.export("torch", tmp_path / "weights.pt")
    exported = Parted(norm="task.norm=false" not in CASES[case])
    exported.load_state_dict(torch.load(tmp_path / "weights.pt"), strict=False)
    batch = default_collate([*rows()["val"]])
    with torch.no_grad():
        loss = functional.mse_loss(exported.eval()(batch["x"]), batch["y"])
    assert float(loss) == validated
    assert {"training_weights", "current_model_state"} & final_state(run).keys()


def test_averages_of_a_bundled_task_are_evaluated(make_run: MakeRun, fit: Fit) -> None:
    config, run = make_run(*EVERYTHING, *EMA, "checkpoint.monitor=val/loss")
    outcome = fit(config, run)
    folder = run.checkpoints / (run.checkpoints / "best").read_text().strip()
    trained = open_trained_model(config, folder)
    value = json.loads((folder / "manifest.json").read_text())["value"]
    assert trained.measure("val")[0]["val/loss"] == pytest.approx(value, rel=1e-5)
    assert trained.measure("test")[0]["test/loss"] == pytest.approx(outcome.metrics["test/loss"], rel=1e-5)
