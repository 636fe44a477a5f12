"""Checkpoints are read as arrays of numbers and the few values of state.json."""

import json
import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest

from tools.testing.weights import Evil
from train_anywhere.errors import CheckpointError
from train_anywhere.training.keras.checkpoint import read_state, restore_variables
from train_anywhere.training.keras.module import name_variables

REST = {
    "pending": False,
    "best": None,
    "bad": 0,
    "devices": 2,
    "ended": False,
    "flags": [True],
    "traced": [False],
    "callbacks": {},
}


@pytest.fixture(scope="module")
def model() -> keras.Model:
    """Two variables."""
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="dense")])


def good(model: keras.Model) -> dict[str, np.ndarray]:
    return {v.path: np.asarray(v) for v in model.variables}


def test_good_weights_are_read(model: keras.Model, tmp_path: Path) -> None:
    np.savez(tmp_path / "weights.npz", **good(model))
    restore_variables(tmp_path / "weights.npz", name_variables(model.variables))


def test_an_object_in_an_array_is_not_unpickled(model: keras.Model, tmp_path: Path) -> None:
    evil = np.array([Evil(tmp_path / "proof")], dtype=object)
    np.savez(tmp_path / "weights.npz", **{**good(model), model.variables[0].path: evil})
    with pytest.raises(CheckpointError, match="is damaged, or holds more than numbers"):
        restore_variables(tmp_path / "weights.npz", name_variables(model.variables))
    assert not (tmp_path / "proof").exists()


@pytest.mark.parametrize("array", [np.zeros((3, 3)), np.array([["a", "b"]] * 3)])
def test_an_array_that_does_not_fit_is_refused(model: keras.Model, tmp_path: Path, array: np.ndarray) -> None:
    np.savez(tmp_path / "weights.npz", **{**good(model), model.variables[0].path: array})
    with pytest.raises(CheckpointError, match="was written with another model"):
        restore_variables(tmp_path / "weights.npz", name_variables(model.variables))


def huge(file: Path) -> None:
    """The header of an array of eight terabytes."""
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("w.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)


def bomb(file: Path) -> None:
    """Ten million zeros in a few bytes."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("w.npy", bytes(10_000_000))


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (lambda file: file.write_bytes(b""), "can't be read: File is not a zip file"),
        (lambda file: file.write_bytes(b"PK\x05\x06" + bytes(7)), "can't be read: File is not a zip file"),
        (bomb, "unpacks to 10000000 bytes"),
        (huge, "is damaged, or holds more than numbers"),
    ],
)
def test_a_file_that_is_no_archive_of_arrays_is_refused(model, tmp_path, write, says) -> None:
    write(tmp_path / "weights.npz")
    with pytest.raises(CheckpointError, match=says):
        restore_variables(tmp_path / "weights.npz", name_variables(model.variables))


def test_the_state_is_read(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(json.dumps(REST))
    assert read_state(tmp_path / "state.json") == {**REST, "lora": None}
    (tmp_path / "state.json").write_text(json.dumps({**REST, "lora": ["hash", "base"]}))
    assert read_state(tmp_path / "state.json")["lora"] == ["hash", "base"]


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", "[" * 100_000, json.dumps(REST | {"devices": 0}), json.dumps(REST | {"devices": "2"}),
        json.dumps(REST | {"bad": -1}), json.dumps(REST | {"pending": 1}), json.dumps(REST | {"preempted": True}),
        json.dumps(REST | {"flags": [1]}), json.dumps(REST | {"callbacks": []}), json.dumps(REST | {"lora": "base"}),
    ],
)  # fmt: skip
def test_a_state_of_anything_else_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"state\.json"):
        read_state(tmp_path / "state.json")
