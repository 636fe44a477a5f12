"""Data is checked by names and headers before a run is made."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from train_anywhere.config.paths import is_node_only
from train_anywhere.config.schema import Config
from train_anywhere.training.preflight import check_data, data_problems

Make = Callable[..., Config]

MNIST = f"data=mnist data.dir={tempfile.gettempdir()}/nope"
TABLE = "experiment=regression"
PROBLEMS = [
    ("data.batch_size=5000", 1, "which has 1259 samples; use data.batch_size=1259 or less."),
    ("data.batch_size=5000", 4, "use data.batch_size=1256 or less."),
    (f"{TABLE} data.length=10", 1, "which has 10 samples; use data.batch_size=10 or less."),
    (f"{TABLE} data.length=10 data.batch_size=32", 16, "use 10 ranks or fewer."),
    ("trainer.accumulate_grad_batches=14", 1, "an epoch has 13 batches, fewer than"),
    ("trainer.limit_train_batches=1 trainer.accumulate_grad_batches=2", 1, "no step would be made"),
    ("data=imagefolder data.dir=/nope", 1, "/nope/train can't be listed (No such file or directory)"),
    ("data=mnist data.dir=/nope data.download=false", 1, "MNIST is not complete: put train-images-idx3-ubyte.gz"),
    ("data=mnist data.dir=/dev/null/x", 1, "/dev/null is a file, not a folder; use data.dir=FOLDER."),
]  # fmt: skip
"""Overrides, devices, and their messages."""


def test_one_sentence_each(make_config: Make) -> None:
    found = [data_problems(make_config(*words.split()), devices) for words, devices, _ in PROBLEMS]
    each = zip(PROBLEMS, found, strict=True)
    assert [(row, said) for row, said in each if len(said) != 1 or row[2] not in said[0]] == []


def test_what_can_be_trained_passes(make_config: Make) -> None:
    for words in (
        "data.batch_size=1259",
        MNIST,
        "data=synthetic",
        "trainer.accumulate_grad_batches=13",
        "trainer.early_stopping.patience=3",
    ):
        assert data_problems(make_config(*words.split()), 1) == []


def test_nobody_looks_for_folders_of_another_machine(make_config: Make) -> None:
    config = make_config("data=imagefolder", "data.dir=/nope")
    assert data_problems(config, 1, look=False) == []


def test_mnist_is_counted_by_its_headers(make_config: Make, mnist_dir: Path) -> None:
    config = make_config("data=mnist", f"data.dir={mnist_dir}", "data.batch_size=112")
    assert check_data(config.data, look=True).length == 110
    assert data_problems(config, 1) == [
        "data.batch_size=112 is larger than the training split, which has 110 samples; use data.batch_size=110 or less."
    ]


@pytest.mark.parametrize("content", [b"", b"\0\0\x08", b"<html>not found</html>", b"\0\0\x08\x03\0\0"])
def test_mnist_files_that_are_something_else(make_config: Make, mnist_dir: Path, content: bytes) -> None:
    raw = mnist_dir / "MNIST" / "raw"
    (raw / "train-images-idx3-ubyte.gz").unlink()
    (raw / "train-images-idx3-ubyte").write_bytes(content)
    [problem] = data_problems(make_config("data=mnist", f"data.dir={mnist_dir}"), 1)
    assert problem.startswith(f"{raw}/train-images-idx3-ubyte is ")


def test_pictures_are_looked_for_and_not_counted(make_config: Make, tmp_path: Path) -> None:
    for split in ("train", "val"):
        (tmp_path / split / "cat").mkdir(parents=True)
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "train" / "cat" / "a.png")
    config = make_config("data=imagefolder", f"data.dir={tmp_path}")
    assert check_data(config.data, look=True).length is None
    assert data_problems(config, 1) == []


@pytest.mark.parametrize(
    ("path", "disk", "mounts", "expected"),
    [
        ("$SLURM_TMPDIR/x", "/tmp", [], True),
        ("/tmp/x", "/tmp", [], True),
        ("/data/x", "/tmp", ["/outside:/data"], True),
        ("/data/x", "$TMPDIR", ["/data"], False),
        ("/data/x", "/tmp", [], False),
    ],
)
def test_what_only_a_job_has(path: str, disk: str, mounts: list[str], expected: bool) -> None:
    assert is_node_only(path, disk, mounts) == expected
