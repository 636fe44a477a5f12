"""The commands of examples/ run as the docstrings show them."""

import ast
import csv
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tools.testing.weights import final_weights, info
from train_anywhere.files import ROOT
from train_anywhere.slurm.submission.snapshot import take_snapshot
from train_anywhere.testing.plugin import Command

EXAMPLES = ROOT / "examples"
if not EXAMPLES.is_dir():
    pytest.skip("this project has no examples/", allow_module_level=True)

Run = Callable[[str], Path]


def commands(name: str) -> list[str]:
    """Return the commands in the docstring of an example, each in one line."""
    text = str(ast.get_docstring(ast.parse((EXAMPLES / f"{name}.py").read_text())))
    lines = text.replace("\\\n", " ").splitlines()
    return [" ".join(line.split()) for line in lines if line.startswith("    python ")]


NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != "__init__")


@pytest.fixture(scope="module")
def run(train: Command, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a function that runs an example's commands and returns the last run's folder."""
    results, done = tmp_path_factory.mktemp("results"), {}

    def run_example(name: str) -> Path:
        before = Path()
        for command in commands(name):
            if command not in done:
                words = [w.replace("results/latest", str(before)) for w in shlex.split(command)[2:]]
                printed = train(*words, "trainer.max_epochs=2", f"paths.results={results / str(len(done))}")
                assert printed.returncode == 0, printed.stdout + printed.stderr
                done[command] = (results / str(len(done)) / "latest").resolve()
            before = done[command]
        return before

    return run_example


def column(folder: Path, metric: str) -> list[float]:
    """Return the values of a metric in metrics.csv."""
    with (folder / "metrics.csv").open(newline="") as file:
        return [float(row[metric]) for row in csv.DictReader(file) if row[metric]]


LOSSES = [
    ("lightning", "lightning_module", "val_loss"),
    ("keras", "keras_model", "val/loss"),
    ("keras", "keras_train_step", "val/loss"),
    ("lightning", "lightning_own_loss", "val/loss"),
]


@pytest.mark.parametrize(("framework", "name", "loss"), LOSSES)
def test_the_loss_falls(run: Run, framework: str, name: str, loss: str) -> None:
    first, last = column(run(name), loss)
    assert last < first


SETS = [
    ("lightning", "lightning_several_val", "val_acc/clean", "val_acc/noisy"),
    ("keras", "keras_several_val", "val/accuracy", "val/noisy_accuracy"),
]


@pytest.mark.parametrize(("framework", "name", "clean", "noisy"), SETS)
def test_each_validation_set_has_its_metric(
    run: Run, framework: str, name: str, clean: str, noisy: str
) -> None:
    folder = run(name)
    assert len(column(folder, clean)) == 2 and column(folder, clean)[-1] > column(folder, noisy)[-1]
    assert info(folder)["monitor"] == noisy and noisy in info(folder)["metrics"]


@pytest.mark.parametrize("framework", ["lightning", "keras"])
def test_frozen_layers_keep_their_weights(run: Run, framework: str) -> None:
    first = run(NAMED[framework])
    before, after = final_weights(first), final_weights(run(f"{framework}_frozen"))
    assert before.keys() == after.keys()
    same = [np.array_equal(before[name], after[name]) for name in sorted(before)]
    assert sorted(same) == [
        False,
        False,
        True,
        True,
    ]  # kernel and bias of the head, and of the layer before it


NAMED = {"lightning": "lightning_module", "keras": "keras_model"}
"""Examples with the first command of those with frozen layers."""

ADDED = [
    ("lightning", "lightning_callback_metric", ("val_acc", "val_f1", "weight_norm")),
    ("keras", "keras_callback_metric", ("val/accuracy", "val/top_two", "train/weight_norm")),
]


@pytest.mark.parametrize(("framework", "name", "metrics"), ADDED)
def test_callbacks_and_metrics_are_logged(
    run: Run, framework: str, name: str, metrics: tuple[str, ...]
) -> None:
    accuracy, other, norm = (column(run(name), metric) for metric in metrics)
    assert len(accuracy) == len(other) == len(norm) == 2
    assert 0 < other[-1] <= 1 and other != accuracy and norm[0] > 1
    if framework == "keras":
        assert other[-1] >= accuracy[-1]  # among the two most probable classes


@pytest.mark.parametrize("framework", ["lightning", "keras"])
@pytest.mark.quick("lightning")
def test_a_program_predicts_labels_and_probabilities(train: Command, tmp_path: Path, framework: str) -> None:
    training, predict = (shlex.split(command) for command in commands("predict"))
    words = (f"framework={framework}", "model=mlp", "trainer.max_epochs=1", f"paths.results={tmp_path}")
    printed = train(*training[2:], *words)
    assert printed.returncode == 0, printed.stderr
    program = [sys.executable, *predict[1:-1], str(tmp_path / "latest")]
    done = subprocess.run(program, capture_output=True, text=True, cwd=ROOT)
    assert re.fullmatch(r"(\d  \d+\.\d%\n){5}", done.stdout), done.stdout + done.stderr


def readme() -> dict[str, str]:
    """Return the commands in the table of the README, by file."""
    rows = re.findall(
        r"^\| .* \| (.+) \| `(python .+)` \|$", (EXAMPLES / "README.md").read_text(), re.MULTILINE
    )
    return {re.sub(r"^\[(\w+)\.py\]\(\1\.py\)$", r"\1", file): command for file, command in rows}


def test_the_readme_has_the_same_commands() -> None:
    table = readme()
    assert {name: table.get(name) for name in NAMES} == {name: commands(name)[-1] for name in NAMES}


def test_wandb_keeps_its_files_in_the_run_folder(
    train: Command, tmp_path: Path, require: Callable[[object, str], None]
) -> None:
    require(find_spec("wandb"), "pip install wandb")
    (command,) = [command for command in readme().values() if "wandb" in command]
    short = ("model=mlp", "trainer.max_steps=1", f"paths.results={tmp_path}")
    printed = train(*shlex.split(command)[2:], *short)
    assert printed.returncode == 0, printed.stderr
    assert list((tmp_path / "latest" / "wandb").glob("offline-run-*/*.wandb"))


@pytest.mark.git
def test_a_job_finds_them(train: Command, tmp_path: Path) -> None:
    """A submission checks the arguments, and the job's copy of the code has the files."""
    done = train(*shlex.split(commands("lightning_own_loss")[0])[2:], "cluster=slurm", "dry_run=true")
    assert "dry run: nothing was written" in done.stdout, done.stderr
    take_snapshot(ROOT, tmp_path / "code", tmp_path / "results")
    copied = {path.relative_to(tmp_path / "code/examples") for path in (tmp_path / "code/examples").iterdir()}
    assert {Path(f"{name}.py") for name in (*NAMES, "__init__")} <= copied
    assert (tmp_path / "code/src/data/digits.npz").is_file()
