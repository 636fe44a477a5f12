"""Keys of `trainer` in both frameworks: what a run with them does, and what is refused."""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tools.testing.weights import final_weights, info, largest_difference

Train = Callable[..., "CompletedProcess[str]"]
FRAMEWORKS = pytest.mark.parametrize("framework", ["lightning", "keras"])
BASE = (
    "model=mlp", "model.hidden=[8]", "model.dropout=0", "monitor.report=false", "monitor.sample_seconds=null",
)  # fmt: skip


@pytest.fixture
def run(train: Train, tmp_path: Path) -> Callable[..., tuple[Path, str]]:
    """Train a run and return its folder and output."""

    def trained(framework: str, *words: str) -> tuple[Path, str]:
        resumes = any(word.startswith("resume=") for word in words)
        results = [] if resumes else [f"paths.results={tmp_path}/{len(list(tmp_path.iterdir()))}"]
        done = train(*BASE, f"framework={framework}", *results, *words)
        assert done.returncode == 0, done.stderr
        return next(
            Path(line.split(maxsplit=2)[2])
            for line in done.stdout.splitlines()
            if line.startswith("Run folder:")
        ), done.stdout

    return trained


def rows(folder: Path) -> list[dict[str, str]]:
    with open(folder / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def train_losses(folder: Path) -> list[float]:
    return [float(row["train/loss"]) for row in rows(folder) if row["train/loss"]]


@FRAMEWORKS
def test_early_stopping_waits_for_min_epochs(run: Callable[..., tuple[Path, str]], framework: str) -> None:
    stops = (
        "trainer.early_stopping.patience=1", "trainer.early_stopping.min_delta=100", "trainer.max_epochs=6",
        "trainer.limit_train_batches=2",
    )  # fmt: skip
    folder, printed = run(framework, *stops)
    assert info(folder)["epoch"] == 2
    assert printed.count("\nstopped early: val/loss was not better than ") == 1
    run(framework, f"resume={folder}", "trainer.min_epochs=3")
    assert info(folder)["epoch"] == 3
    assert info(run(framework, *stops, "trainer.min_steps=7")[0])["epoch"] == 4


@FRAMEWORKS
def test_validations_within_an_epoch(run: Callable[..., tuple[Path, str]], framework: str) -> None:
    """Each has a row, a line, points in TensorBoard and a checkpoint, and can be the best."""
    words = ("trainer.val_check_interval=0.4", "trainer.max_epochs=2", "checkpoint.keep_last=9")
    first = ("checkpoint.monitor=val/loss", "checkpoint.mode=max")
    folder, out = run(framework, *words, *first, "monitor.progress=plain")
    validated = {int(row["step"]): float(row["val/loss"]) for row in rows(folder) if row["val/loss"]}
    # the end of an epoch is not a fraction, and Lightning validates that of the run only if it is one
    assert [*validated] == [5, 10, 18, 23] + ([26] if framework == "keras" else [])
    assert all(f"step {step}/26" in out for step in validated)
    assert [row["step"] for row in rows(folder)].count("10") == 1
    kept = [json.loads(file.read_text()) for file in folder.glob("checkpoints/*/manifest.json")]
    values = {entry["step"]: entry["value"] for entry in kept if entry["value"] is not None}
    assert values == pytest.approx(validated, rel=1e-4)
    best = int((folder / "checkpoints" / "best").read_text())
    assert validated[best] == max(validated.values()) and best == 5


def newest_seconds(folder: Path) -> float:
    newest = (folder / "checkpoints" / "newest").read_text().strip()
    return float(json.loads((folder / "checkpoints" / newest / "manifest.json").read_text())["seconds"])


@FRAMEWORKS
def test_the_time_of_training_ends_a_run(run: Callable[..., tuple[Path, str]], framework: str) -> None:
    """It ends within an epoch with validation, checkpoint and test. A resume counts on."""
    words = ("trainer.max_epochs=-1", "schedule=constant", "monitor.progress=plain")
    folder, out = run(framework, *words, "trainer.max_time=00:00:00:01")
    step = info(folder)["step"]
    assert info(folder)["state"] == "completed" and step > 0
    assert re.search(rf"stopped early: \d+ s of training are over at step {step} \(trainer.max_time=", out)
    measured = {
        name for row in rows(folder) if int(row["step"]) == step for name, value in row.items() if value
    }
    assert {"val/loss", "train/loss", "test/loss"} <= measured
    assert newest_seconds(folder) >= 1
    out = run(framework, f"resume={folder}")[1]
    assert "nothing is left to train" in out and "trainer.max_time=null" in out
    before = newest_seconds(folder)
    run(framework, f"resume={folder}", "trainer.max_time=00:10:00", f"trainer.max_steps={step + 3}")
    assert info(folder)["step"] == step + 3 and newest_seconds(folder) > before


@pytest.mark.slow
@pytest.mark.parametrize(("framework", "strategy"), [("lightning", "ddp"), ("keras", "multiworker_mirrored")])
def test_ranks_end_at_the_same_step(run, framework, strategy) -> None:
    """The ranks notice the time and validate together, or they would wait for each other."""
    words = (f"strategy={strategy}", "trainer.devices=2", "trainer.accelerator=cpu")
    words = (*words, "trainer.val_check_interval=3", "trainer.check_val_every_n_epoch=null")
    words = (*words, "trainer.max_epochs=99999", "trainer.log_every_n_steps=2", "schedule=constant")
    folder, _ = run(framework, *words, "trainer.max_time=00:00:00:08")
    assert info(folder)["state"] == "completed" and newest_seconds(folder) >= 8
    validated = [int(row["step"]) for row in rows(folder) if row["val/loss"]]
    assert validated == [*range(3, validated[-1], 3), info(folder)["step"]]


def test_validation_batches_before_training_change_nothing(run) -> None:
    words = ("trainer.max_steps=6", "model.dropout=0.5", "trainer.log_every_n_steps=2")
    plain, folder = (
        run("lightning", *words, f"trainer.num_sanity_val_steps={count}")[0] for count in (0, -1)
    )
    assert rows(folder) == rows(plain)
    assert largest_difference(final_weights(folder), final_weights(plain)) == 0
    assert {path.name for path in folder.iterdir()} == {path.name for path in plain.iterdir()}


def test_a_fault_of_the_validation_is_found_before_training(train, tmp_path) -> None:
    words = (
        *("framework=lightning", "task=regression", "model=mlp", "trainer.max_epochs=1"),
        "data._target_=engine.tests.training.poisoned.open_unreadable",
    )
    for count, step in ((0, 2), (1, 0)):
        done = train(
            *words, "+data.length=64", "data.batch_size=32", f"trainer.num_sanity_val_steps={count}",
            "monitor.report=false", f"paths.results={tmp_path}/{count}",
        )  # fmt: skip
        assert done.returncode != 0 and "row 0 is damaged" in done.stderr
        assert (info(tmp_path / str(count) / "latest")["attempts"][-1].get("step") or 0) == step


@FRAMEWORKS
@pytest.mark.quick("lightning")
def test_a_model_overfits_the_same_batches(run: Callable[..., tuple[Path, str]], framework: str) -> None:
    words = ("model.hidden=[64]", "trainer.log_every_n_steps=1", "optimizer.lr=0.01", "schedule=constant")
    folder, _ = run(framework, "trainer.overfit_batches=1", "trainer.max_epochs=40", *words)
    losses = train_losses(folder)
    assert info(folder)["step"] == len(losses) == 40 and losses[-1] < losses[0] / 20


def test_extra_arguments_reach_lightning_s_trainer(train: Train, tmp_path: Path) -> None:
    done = train(*BASE, "trainer.extra.profiler=simple", "trainer.max_steps=2", f"paths.results={tmp_path}")
    assert done.returncode == 0 and "FIT Profiler Report" in done.stderr


def test_help_of_one_section(train: Train) -> None:
    done = train("--help", "checkpoint")
    assert done.stdout.startswith("checkpoint:\n  every_n_epochs: ") and "trainer:" not in done.stdout
    assert "# " in done.stdout
    done = train("--help", "cluster", "strategy")
    assert "cluster=slurm " in done.stdout and "  account: null " in done.stdout
    assert "strategy=ddp                                # torch Distributed" in done.stdout
    done = train("--help", "trianer")
    assert (
        done.returncode == 2
        and "trianer is not a section, a key or a term of the pages. Did you mean" in done.stderr
    )


@FRAMEWORKS
def test_the_first_lines_name_what_is_trained(run: Callable[..., tuple[Path, str]], framework: str) -> None:
    """With deterministic operations, and without checkpoints of epochs."""
    words = ("trainer.max_steps=2", "trainer.deterministic=true", "checkpoint.every_n_epochs=null")
    folder, out = run(framework, *words)
    shown = dict(line.split(":", 1) for line in out.splitlines() if ":" in line)
    assert shown["Model"].split(", ")[0].strip() == "mlp" and "610 parameters" in shown["Model"]
    assert shown["Data"].strip() == "digits, 1,259 training rows, 179 validation, 359 test"
    assert (
        "cpu" in shown["Device"]
        and shown["Batch"].strip() == "96"
        and shown["Steps"].strip() == "2 in 1 epoch"
    )
    assert shown["Next"].strip().endswith(f"src/evaluate.py {folder}")
    known = info(folder)
    assert (known["model"], known["parameters"], known["steps"]) == ("mlp", 610, 2)
    assert known["rows"] == {"training rows": 1259, "validation": 179, "test": 359}
    assert known["versions"]["python"] and known["commit"]
    # the end has a checkpoint, also without those of epochs
    assert [path.name for path in (folder / "checkpoints").iterdir() if path.name.isdecimal()] == ["00000002"]


@FRAMEWORKS
def test_a_fast_dev_run_leaves_nothing(run: Callable[..., tuple[Path, str]], framework: str) -> None:
    folder, _ = run(framework, "trainer.fast_dev_run=true")
    assert not {"checkpoints", "metrics.csv", "tensorboard"} & {path.name for path in folder.iterdir()}
    known = info(folder)
    assert "steps" not in known and (known["state"], known["step"], known["checkpoint"]) == (
        "completed",
        1,
        None,
    )
    assert {"train/loss", "val/acc", "test/acc"} <= known["metrics"].keys()


def test_an_unknown_argument_of_the_trainer_is_refused(train: Train, tmp_path: Path) -> None:
    done = train("trainer.extra.foo=1", "trainer.extra.benchmrk=true", f"paths.results={tmp_path}/none")
    assert done.returncode == 2 and not (tmp_path / "none").exists()
    assert "trainer.extra.foo is not an argument" in done.stderr
    assert "Did you mean 'benchmark'?" in done.stderr


@FRAMEWORKS
def test_parts_give_the_losses_of_whole_batches(run, train: Train, tmp_path: Path, framework: str) -> None:
    """Two ranks with the parts of a batch have the rows of one rank with the whole batch."""
    losses = []
    for devices, rows in ((1, 96), (2, 24)):
        words = (f"trainer.devices={devices}", f"trainer.micro_batch={rows}", "trainer.max_epochs=1")
        metrics = info(run(framework, *words)[0])["metrics"]
        losses.append((metrics["val/loss"], metrics["test/loss"]))
    assert losses[1] == pytest.approx(losses[0], rel=1e-6), losses
    refused = train(*BASE, "trainer.micro_batch=36", f"paths.results={tmp_path / 'none'}")
    assert refused.returncode == 2 and "use trainer.micro_batch=32." in refused.stderr
