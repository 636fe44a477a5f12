"""The main job, as a user runs it: real data, real processes, both frameworks."""

import csv
import gzip
import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest
from PIL import Image

from engine.tests.test_boundaries import TENSORFLOW, TORCH, split_imports
from src.data.digits import FILE
from tools.testing.weights import final_weights, largest_difference
from train_anywhere.config.command.compose import list_groups
from train_anywhere.files import ROOT

Train = Callable[..., "CompletedProcess[str]"]
FRAMEWORKS = ["lightning", "keras"]
METRICS = {"train/loss", "train/acc", "val/loss", "val/acc", "test/loss", "test/acc"}


def run_json(results: Path) -> dict[str, Any]:
    return json.loads((results / "latest" / "run.json").read_text())


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_digits(train: Train, tmp_path: Path, framework: str) -> None:
    done = train(f"framework={framework}", f"paths.results={tmp_path}", python=("-X", "importtime"))
    imported, warnings = split_imports(done.stderr)
    assert (done.returncode, warnings) == (0, [])
    own, other = (TORCH, TENSORFLOW) if framework == "lightning" else (TENSORFLOW, TORCH)
    assert imported & own and not imported & other
    info = run_json(tmp_path)
    assert info["metrics"]["test/acc"] >= 0.97
    assert set(info["metrics"]) == METRICS
    assert (info["state"], info["framework"], info["strategy"], info["world_size"]) == (
        "completed",
        framework,
        "single",
        1,
    )
    assert (info["epoch"], info["step"], info["restarts"]) == (15, 195, 0)
    run = (tmp_path / "latest").resolve()
    for line in (
        "Test:          test/loss 0.",
        f"Run folder:    {run}",
        "Checkpoint:    ",
        "TensorBoard:   ",
        "Next:          ",
    ):
        assert line in done.stdout
    assert "epoch 15/15" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr  # no terminal: plain lines
    rows = list(csv.DictReader((run / "metrics.csv").open()))
    assert rows[-1]["test/acc"] != ""
    assert [r["val/acc"] for r in rows if r["val/acc"]]
    assert list((run / "tensorboard").iterdir())
    assert Path(info["checkpoint"]).is_dir()


def idx_files(folder: Path, train_length: int, test_length: int) -> None:
    """Write MNIST's four files of upscaled real digits, one compressed."""
    digits = np.load(FILE)
    images, labels = np.kron(digits["images"] * 15, np.ones((1, 3, 3), np.uint8)), digits["labels"]
    images = np.pad(images, ((0, 0), (2, 2), (2, 2)))
    folder.mkdir(parents=True)
    for part, (start, length) in {"train": (0, train_length), "t10k": (train_length, test_length)}.items():
        x, y = images[start : start + length], labels[start : start + length]
        (folder / f"{part}-images-idx3-ubyte").write_bytes(
            struct.pack(">IIII", 2051, length, 28, 28) + x.tobytes()
        )
        with gzip.open(folder / f"{part}-labels-idx1-ubyte.gz", "wb") as file:
            file.write(struct.pack(">II", 2049, length) + y.tobytes())


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["keras", "lightning"])
def test_mnist_files(train: Train, tmp_path: Path, framework: str) -> None:
    idx_files(tmp_path / "data/MNIST/raw", 1200, 300)
    done = train(
        "data=mnist",
        f"framework={framework}",
        f"paths.data={tmp_path / 'data'}",
        f"paths.results={tmp_path}",
        "data.batch_size=50",
        "trainer.max_epochs=3",
        "model.width=8",
    )
    assert done.returncode == 0, done.stderr
    assert run_json(tmp_path)["metrics"]["test/acc"] > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["lightning", "keras"])
def test_imagefolder(train: Train, tmp_path: Path, framework: str) -> None:
    generator = np.random.default_rng(0)
    for part, count in (("train", 40), ("val", 20)):
        for channel, name in enumerate(("red", "green")):
            folder = tmp_path / "images" / part / name
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = generator.integers(0, 90, (40, 48, 3), dtype=np.uint8)
                pixels[..., channel] += 150
                Image.fromarray(pixels).save(folder / f"{i}.jpeg")
    done = train(
        "data=imagefolder",
        f"data.dir={tmp_path / 'images'}",
        "data.image_size=32",
        "data.workers=2",
        "data.batch_size=20",
        f"framework={framework}",
        f"paths.results={tmp_path}",
        "trainer.max_epochs=5",
        "model.width=4",
    )
    assert done.returncode == 0, done.stderr
    assert run_json(tmp_path)["metrics"]["test/acc"] > 0.9


def test_missing_data_is_one_sentence(train: Train, tmp_path: Path) -> None:
    done = train("data=imagefolder", f"data.dir={tmp_path / 'none'}", f"paths.results={tmp_path / 'results'}")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {tmp_path}/none/train can't be listed (No such file or directory)")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_latest_stays_at_the_run_before_one_that_fails_for_its_data(train: Train, tmp_path: Path) -> None:
    """An empty class is noticed when the data set is opened, and an earlier run exists."""
    before = tmp_path / "results" / "digits" / "before"
    before.mkdir(parents=True)
    (tmp_path / "results" / "latest").symlink_to("digits/before")
    for split in ("train", "val"):
        (tmp_path / "pictures" / split / "cat").mkdir(parents=True)
    data = ("data=imagefolder", f"data.dir={tmp_path / 'pictures'}")
    done = train(*data, f"paths.results={tmp_path / 'results'}")
    assert done.returncode == 1
    assert "train/cat" in done.stderr and "Traceback" not in done.stderr
    assert (tmp_path / "results" / "latest").resolve() == before
    [failed] = (tmp_path / "results" / "imagefolder").iterdir()
    assert json.loads((failed / "run.json").read_text())["state"] == "failed"


QUICK = ("trainer.max_epochs=4", "data.batch_size=24", "model.width=8", "trainer.log_every_n_steps=5")


@pytest.mark.parametrize("framework", ["lightning", pytest.param("keras", marks=pytest.mark.slow)])
def test_ctrl_c_then_resume_is_the_uninterrupted_run_bit_for_bit(train, tmp_path, framework) -> None:
    options = [f"framework={framework}", *QUICK]
    whole = train(*options, f"paths.results={tmp_path / 'whole'}")
    assert whole.returncode == 0, whole.stderr

    command = [
        sys.executable,
        "-u",
        str(ROOT / "src/train.py"),
        *options,
        f"paths.results={tmp_path / 'stopped'}",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        printed = ""
        while "epoch 2/4" not in printed:
            line = process.stdout.readline()
            assert line, printed + process.stderr.read()
            printed += line
        process.send_signal(signal.SIGINT)
        printed += process.stdout.read()
        errors = process.stderr.read()
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    run = (tmp_path / "stopped" / "latest").resolve()
    assert f"resume={run}" in printed
    stopped = run_json(tmp_path / "stopped")
    assert stopped["state"] == "preempted"
    assert 0 < stopped["step"] < 4 * 52

    again = train(f"resume={run}")
    assert again.returncode == 0, again.stderr
    info = run_json(tmp_path / "stopped")
    assert (info["state"], info["restarts"]) == ("completed", 1)
    assert Path(info["checkpoint"]).parent.parent == run
    assert largest_difference(final_weights(tmp_path / "whole" / "latest"), final_weights(run)) == 0
    steps = [int(r["step"]) for r in csv.DictReader((run / "metrics.csv").open())]
    assert steps == sorted(steps)  # one curve


@pytest.mark.slow
def test_resume_goes_on_with_what_the_new_command_names(train: Train, tmp_path: Path) -> None:
    first = train("trainer.max_epochs=1", "model.dropout=0.2", f"paths.results={tmp_path}")
    assert first.returncode == 0, first.stderr
    run = (tmp_path / "latest").resolve()
    refused = train(f"resume={run}", "model=mlp", "seed=5")
    assert refused.returncode == 2
    assert "seed=5" in refused.stderr and "model.name=mlp" in refused.stderr
    longer = train(f"resume={tmp_path / 'latest'}", "trainer.max_epochs=2")
    assert longer.returncode == 0, longer.stderr
    info = run_json(tmp_path)
    assert info["epoch"] == 2
    assert len([p for p in run.parent.iterdir() if p.is_dir()]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("experiment", list_groups()["experiment"])
def test_every_experiment_runs(train: Train, tmp_path: Path, experiment: str) -> None:
    """One batch of each loop at a size for this machine, with the experiment's own strategy."""
    if experiment == "resnet50_mnist":
        idx_files(tmp_path / "data/MNIST/raw", 240, 60)
    small = ["trainer.fast_dev_run=true", "data.batch_size=8", "trainer.devices=1", "trainer.nodes=1"]
    done = train(
        f"experiment={experiment}", *small, f"paths.data={tmp_path / 'data'}", f"paths.results={tmp_path}"
    )
    assert done.returncode == 0, done.stderr
    assert run_json(tmp_path)["state"] == "completed"


@pytest.mark.parametrize(
    ("words", "noted"),
    [
        (("framework=keras",), True),
        (("framework=keras", "cluster=slurm"), True),
        (("-m", "framework=keras", "seed=1,2"), True),
        (("framework=lightning",), False),
    ],
)
@pytest.mark.quick("words1-True")
def test_another_backend_of_keras_is_noted_once(train: Train, words: tuple[str, ...], noted: bool) -> None:
    done = train(*words, "dry_run=true", env={"KERAS_BACKEND": "jax"})
    note = "note: KERAS_BACKEND=jax has no effect: framework=keras trains with TensorFlow."
    assert done.returncode == 0 and done.stderr.count(note) == noted, done.stderr
    assert "KERAS_BACKEND" not in done.stdout
    assert train(*words, "dry_run=true", env={"KERAS_BACKEND": "tensorflow"}).stderr.count("note") == 0
