"""Names that modules had before the engine was a package still mean the same."""

import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from train_anywhere.files import ENGINE, ROOT, with_engine
from train_anywhere.renamed import CURRENT_NAMES, current_name, update_override, update_tree


def test_each_new_name_exists() -> None:
    def exists(name: str) -> bool:
        package, _, last = name.rpartition(".")
        try:
            return importlib.util.find_spec(name) is not None or hasattr(sys.modules[package], last)
        except ModuleNotFoundError:  # a function or class in a module
            return hasattr(importlib.import_module(package), last)

    assert [new for new in CURRENT_NAMES.values() if not exists(new)] == []


def test_no_old_name_is_one_of_today() -> None:
    lately = [old for old in CURRENT_NAMES if old.startswith("train_anywhere.")]
    places = [ENGINE.joinpath(*old.split(".")) for old in lately]
    there = [p for p in places if p.with_suffix(".py").exists() or (p / "__init__.py").exists()]
    assert len(lately) > 100 and there == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("train_anywhere.data.base.ModuleLoaders", "train_anywhere.data.dataset.ModuleLoaders"),
        ("train_anywhere.after.load_model", "train_anywhere.inference.load_model"),
        (
            "train_anywhere.data.order.assignment.BatchOrder",
            "train_anywhere.data.order.assignment.BatchOrder",
        ),
        ("src.training.tracking.wandb.Wandb", "train_anywhere.training.tracking.wandb.Wandb"),
        ("train_anywhere.training.monitored", "train_anywhere.training.monitored_metric"),
        ("train_anywhere.training.keras.loop.calls.x", "train_anywhere.training.keras.loop.steps_per_call.x"),
        ("src.tasks.base.Task", "train_anywhere.tasks.Task"),
        ("src.tasks.regression.Regression", "src.tasks.regression.Regression"),
        ("src.trainings.x", "src.trainings.x"),
        ("slurm.job.Job", "train_anywhere.slurm.script.job.Job"),
        ("torch.optim.Adam", "torch.optim.Adam"),
    ],
)
def test_today_s_name(old: str, new: str) -> None:
    assert current_name(old) == new
    tree: dict[str, Any] = {"a": [{"_target_": {"keras": old}}], "b": old, "_check_": old, "_target_": None}
    tree["itself"] = [tree]
    update_tree(tree)
    assert tree.pop("itself")[0] is tree
    assert tree == {"a": [{"_target_": {"keras": new}}], "b": old, "_check_": new, "_target_": None}
    assert update_override(f"task._target_={old}") == f"task._target_={new}"
    assert update_override(f"name={old}") == f"name={old}"


def test_an_import_by_an_old_name_is_the_same_module_and_warns() -> None:
    code = (
        "import train_anywhere, src.tasks.base, slurm.units; from src.data.base import Splits; import train_anywhere.tasks as new;"
        "import train_anywhere.data.dataset as base; print(src.tasks.base is new, Splits is base.Splits)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "True True\n", done.stderr
    assert "src.tasks.base is called train_anywhere.tasks now" in done.stderr
    assert done.stderr.count("FutureWarning") == 3


def test_a_public_module_that_was_renamed_is_imported_and_warns() -> None:
    code = "from train_anywhere.after import load_model; import train_anywhere.inference as new; print(load_model is new.load_model)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, env=with_engine()
    )
    assert (
        done.stdout == "True\n"
        and "train_anywhere.after is called train_anywhere.inference now" in done.stderr
    )


def test_a_public_function_that_was_renamed_is_imported_and_warns() -> None:
    code = "from train_anywhere.config import here, resolve_node_path; print(here is resolve_node_path)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=with_engine())
    assert done.stdout == "True\n"
    assert "config.here is called train_anywhere.config.resolve_node_path now" in done.stderr


def test_rules_of_a_signature_count_by_old_names_too(
    train: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """A model that a fork wrote before: its annotations are read, not imported."""
    (tmp_path / "mine.py").write_text(
        "from typing import Annotated\nfrom src.config.limits import Probability, Range\n"
        "def net(shape, outputs, dropout: Probability, width: Annotated[int, Range(at_least=2)]): ...\n"
    )
    words = ("model._target_=mine.net", "+model.from_data={shape: shape, outputs: outputs}")
    words += ("+model.dropout=1.5", "+model.width=1", "dry_run=true")
    done = train(*words, env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 2
    assert (
        "model.dropout=1.5 must be below 1" in done.stderr
        and "model.width=1 must be at least 2" in done.stderr
    )


def test_a_run_from_before_resumes_without_a_question(
    train: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    task = "task._target_=src.tasks.lightning.regression.Regression"
    words = (
        "data=friedman",
        "model=mlp",
        "task=regression",
        task,
        "loggers=wandb",
        "loggers.wandb.offline=true",
    )
    done = train(*words, "trainer.max_steps=2", f"paths.results={tmp_path}")
    assert done.returncode == 0, done.stderr
    (run,) = tmp_path.glob("*/2*")
    for file in (run / "config.yaml", run / "overrides.txt"):
        text = file.read_text().replace("train_anywhere.training.tracking", "src.training.tracking")
        file.write_text(text.replace("train_anywhere.data", "src.data"))
    assert "src.training.tracking.wandb" in (run / "config.yaml").read_text()
    done = train(f"resume={run}", "trainer.max_steps=4")
    assert done.returncode == 0, done.stderr
    assert "Checkpoint:" in done.stdout and "00000004" in done.stdout
