"""Keys of `trainer` in both frameworks: what a run with them does, and what is refused."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

Train = Callable[..., "CompletedProcess[str]"]
FRAMEWORKS = pytest.mark.parametrize("framework", ["lightning", "keras"])
BASE = (
    "model=mlp",
    "model.hidden=[8]",
    "model.dropout=0",
    "monitor.report=false",
    "monitor.sample_seconds=null",
)


@pytest.fixture
def run(train: Train, tmp_path: Path) -> Callable[..., tuple[Path, str]]:
    """Train a run; return its folder and what was printed."""

    def trained(framework: str, *words: str) -> tuple[Path, str]:
        done = train(
            *BASE,
            f"framework={framework}",
            f"paths.results={tmp_path}/{len(list(tmp_path.iterdir()))}",
            *words,
        )
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


def info(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return content


@FRAMEWORKS
def test_early_stopping_waits_for_min_epochs(run: Callable[..., tuple[Path, str]], framework: str) -> None:
    stops = (
        "trainer.early_stopping.patience=1",
        "trainer.early_stopping.min_delta=100",
        "trainer.max_epochs=6",
        "trainer.limit_train_batches=2",
    )
    folder, _ = run(framework, *stops)
    assert info(folder)["epoch"] == 2
    run(framework, f"resume={folder}", "trainer.min_epochs=3")
    assert info(folder)["epoch"] == 3
    assert info(run(framework, *stops, "trainer.min_epochs=4")[0])["epoch"] == 4


@FRAMEWORKS
def test_a_model_overfits_the_same_batches(run: Callable[..., tuple[Path, str]], framework: str) -> None:
    words = ("model.hidden=[64]", "trainer.log_every_n_steps=1", "optimizer.lr=0.01", "schedule=constant")
    folder, _ = run(framework, "trainer.overfit_batches=1", "trainer.max_epochs=40", *words)
    losses = train_losses(folder)
    assert info(folder)["step"] == len(losses) == 40 and losses[-1] < losses[0] / 20


@FRAMEWORKS
def test_gradients_are_clipped_by_value(run: Callable[..., tuple[Path, str]], framework: str) -> None:
    """SGD with rate 1 moves no weight by more than the limit in a step: the loss hardly changes."""
    words = (
        "optimizer=sgd",
        "optimizer.lr=1.0",
        "optimizer.momentum=0",
        "optimizer.weight_decay=0",
        "schedule=constant",
        "trainer.max_steps=8",
        "trainer.log_every_n_steps=1",
        "trainer.overfit_batches=1",
    )
    free, _ = run(framework, *words)
    clipped, _ = run(
        framework, *words, "trainer.gradient_clip_val=1e-6", "trainer.gradient_clip_algorithm=value"
    )
    change = [abs(losses[-1] - losses[0]) for losses in map(train_losses, (clipped, free))]
    assert change[0] < 1e-3 < change[1]


@FRAMEWORKS
def test_without_checkpoints_of_epochs_the_end_has_one(
    run: Callable[..., tuple[Path, str]], framework: str
) -> None:
    folder, _ = run(
        framework, "checkpoint.every_n_epochs=null", "trainer.max_epochs=3", "trainer.limit_train_batches=2"
    )
    assert [path.name for path in (folder / "checkpoints").iterdir() if path.name.isdecimal()] == ["00000006"]


@FRAMEWORKS
def test_deterministic_operations_train(run: Callable[..., tuple[Path, str]], framework: str) -> None:
    folder, _ = run(framework, "trainer.deterministic=true", "trainer.max_steps=2")
    assert info(folder)["step"] == 2


def test_extra_arguments_reach_lightning_s_trainer(run: Callable[..., tuple[Path, str]]) -> None:
    folder, _ = run("lightning", "trainer.extra.profiler=simple", "trainer.max_steps=2")
    assert info(folder)["state"] == "completed"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["trainer.extra.foo=1"], "trainer.extra.foo is not an argument of Lightning's Trainer"),
        (["trainer.extra.benchmrk=true"], "Did you mean 'benchmark'?"),
        (
            ["trainer.extra.max_epochs=3"],
            "trainer.extra.max_epochs: this project sets it; use trainer.max_epochs.",
        ),
        (
            ["trainer.extra.logger=false"],
            "trainer.extra.logger: this project sets it; use loggers.NAME._target_.",
        ),
        (["framework=keras", "trainer.extra.benchmark=true"], "framework=keras has none"),
        (["trainer.min_epochs=20"], "trainer.min_epochs=20 is more than trainer.max_epochs=15"),
    ],
)
def test_refusals(train: Train, tmp_path: Path, words: list[str], says: str) -> None:
    done = train(*words, f"paths.results={tmp_path}/none")
    assert done.returncode == 2 and says in done.stderr and not (tmp_path / "none").exists()


def test_help_of_one_section(train: Train) -> None:
    done = train("--help", "checkpoint")
    assert done.stdout.startswith("checkpoint:\n  every_n_epochs: ") and "trainer:" not in done.stdout
    assert "# " in done.stdout
    done = train("--help", "trianer")
    assert done.returncode == 2 and "there is no section trianer. Did you mean 'trainer'?" in done.stderr


@FRAMEWORKS
def test_the_first_lines_name_what_is_trained(run: Callable[..., tuple[Path, str]], framework: str) -> None:
    folder, out = run(framework, "trainer.max_steps=2")
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


@FRAMEWORKS
def test_a_fast_dev_run_records_no_facts(run: Callable[..., tuple[Path, str]], framework: str) -> None:
    assert "steps" not in info(run(framework, "trainer.fast_dev_run=true")[0])
