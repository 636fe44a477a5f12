"""A function of the user's in place of src/train.py's: order of a run, loops of its own, stops."""

import json
from pathlib import Path

import numpy as np
import pytest

from train_anywhere.testing.plugin import Command

STOPPING = """
import os, signal
from examples import {example} as example

def train(run):
    steps = run.steps
    def stopping(count, save, every):
        for step in steps(count, save, every):
            if step == 33 and run.newest is None:
                os.kill(os.getpid(), signal.SIGTERM)
            yield step
    run.steps = stopping
    example.train(run)
"""
"""The example's loop, stopped in its first attempt."""

CASES = [
    ("lightning", ()),
    ("keras", ("framework=keras",)),
    pytest.param("lightning", ("strategy=ddp", "trainer.devices=2"), id="lightning-ddp", marks=pytest.mark.slow),
    pytest.param("keras", ("framework=keras", "strategy=horovod", "trainer.devices=2"), marks=[pytest.mark.horovod, pytest.mark.slow]),
]  # fmt: skip


def read_state(run: Path) -> list[np.ndarray]:
    """Return all arrays of the newest checkpoint."""
    folder = run / "checkpoints" / "00000060"
    if (folder / "state.npz").exists():
        return [*np.load(folder / "state.npz").values()]
    torch = pytest.importorskip("torch")
    state = torch.load(folder / "state.pt")
    buffers = [one["momentum_buffer"] for one in state["optimizer"]["state"].values()]
    return [value.numpy() for value in (*state["model"].values(), *buffers)]


@pytest.mark.parametrize("framework, words", CASES)
def test_a_loop_of_its_own_is_reported_saved_and_resumed(train, tmp_path, framework, words) -> None:
    example = f"{framework}_own_loop"
    (tmp_path / "stops.py").write_text(STOPPING.format(example=example))
    words = (*words, "model=mlp", "trainer.accelerator=cpu")
    if "trainer.devices=2" in words:  # ranks agree that often; a single one looks at each step
        words = (*words, "trainer.log_every_n_steps=1")
    environ = {"PYTHONPATH": str(tmp_path)}
    straight, stopped = f"paths.results={tmp_path}/straight", f"paths.results={tmp_path}/stopped"
    done = train(f"train=examples.{example}.train", *words, straight)
    assert done.returncode == 0, done.stderr
    assert train("train=stops.train", *words, stopped, env=environ).returncode == 75
    run = (tmp_path / "stopped" / "latest").resolve()
    info = json.loads((run / "run.json").read_text())
    assert (info["state"], info["step"]) == ("preempted", 33)
    done = train(f"resume={run}", env=environ)
    assert done.returncode == 0 and "Test: " in done.stdout, done.stderr
    whole = (tmp_path / "straight" / "latest").resolve()
    for one, other in zip(read_state(whole), read_state(run), strict=True):
        np.testing.assert_array_equal(one, other)
    rows = (run / "metrics.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows[1:]] == [*map(str, range(5, 61, 5)), "60"]
    assert rows == (whole / "metrics.csv").read_text().splitlines()
    info = json.loads((run / "run.json").read_text())
    assert (info["state"], info["step"], info["restarts"]) == ("completed", 60, 1)
    assert info["metrics"]["test/acc"] > 0.9 and (run / "report.html").exists()


def test_a_row_is_trained_once(train: Command, tmp_path: Path) -> None:
    """A second `fit`, as after unfreezing, is refused with one sentence: one run has one curve."""
    (tmp_path / "twice.py").write_text(
        "def train(run):\n    trainer = run.make_trainer()\n    data = run.open_data()\n    model = run.make_model(data)\n"
        "    run.fit(trainer, model, data)\n    next(run.steps(3, print))\n"
    )
    words = ("train=twice.train", "model=mlp", "trainer.max_steps=1", f"paths.results={tmp_path}")
    done = train(*words, env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 1 and "are for a loop in place of run.fit" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("framework", ["lightning", "keras"])
@pytest.mark.parametrize("name", ["trainer", "data"])
@pytest.mark.quick("trainer-lightning", "data-keras")
def test_an_object_that_fit_would_ignore_is_refused(train, tmp_path, framework, name) -> None:
    (tmp_path / "other.py").write_text(
        "def train(run):\n    trainer = run.make_trainer()\n    data = run.open_data()\n    model = run.make_model(data)\n"
        f"    {name} = object()\n    run.fit(trainer, model, data)\n"
    )
    words = ("train=other.train", f"framework={framework}", "model=mlp", f"paths.results={tmp_path}")
    done = train(*words, env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 1 and f"run.fit got another {name} than make_" in done.stderr, done.stderr


REFUSED = {
    "train=src.train.trian": "src.train has no trian. Did you mean 'train'?",
    "train=nowhere.train": "package 'nowhere' is not found",
}


@pytest.mark.parametrize("word", REFUSED)
def test_a_function_that_does_not_exist_is_refused(train: Command, word: str) -> None:
    done = train(word, "dry_run=true")
    assert done.returncode == 2 and REFUSED[word] in done.stderr, done.stderr


@pytest.mark.parametrize("framework", ["lightning", "keras"])
def test_a_function_that_trains_nothing_is_refused(train: Command, tmp_path: Path, framework: str) -> None:
    (tmp_path / "nothing.py").write_text("def train(run):\n    run.make_trainer()\n")
    words = ("train=nothing.train", f"framework={framework}", f"paths.results={tmp_path}")
    done = train(*words, env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 1 and "has trained nothing" in done.stderr, done.stderr


def test_a_function_that_only_a_run_folder_names_needs_trust(train: Command, tmp_path: Path) -> None:
    done = train("model=mlp", "trainer.max_steps=1", f"paths.results={tmp_path}")
    assert done.returncode == 0, done.stderr
    config = tmp_path / "latest" / "config.yaml"
    config.write_text(config.read_text().replace("train: src.train.train", "train: os.getcwd"))
    moved = (tmp_path / "latest").resolve().rename(tmp_path / "moved")
    done = train(f"resume={moved}", "trainer.max_steps=2")
    assert done.returncode == 2 and "train='os.getcwd', which would run as you" in done.stderr, done.stderr
