"""Host copies of variables: the same memory each time, independent of the training."""

from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def variables() -> list:
    import keras

    shapes = {
        "w": ((3, 4), "float32"),
        "n": ((), "int64"),
        "b": ((5,), "bfloat16"),
        "empty": ((0,), "float32"),
    }
    return [keras.Variable(np.ones(s), dtype=d, name=n, trainable=False) for n, (s, d) in shapes.items()]


def named(variables: list) -> dict:
    return {v.path: v for v in variables}


def test_what_training_does_next_is_not_in_the_copy(variables: list, tmp_path: Path) -> None:
    from train_anywhere.training.keras.checkpoint import Buffers

    buffers = Buffers()
    buffers.fill(named(variables))
    for variable in variables:
        variable.assign(np.full(variable.shape, 7))
    buffers.write(tmp_path / "w.npz")
    with np.load(tmp_path / "w.npz") as arrays:
        assert {n: arrays[n].shape for n in arrays.files} == {"w": (3, 4), "n": (), "b": (5,), "empty": (0,)}
        assert all((arrays[n] == 1).all() for n in ("w", "n"))
    before = {name: array.ctypes.data for name, array in buffers._arrays.items()}
    buffers.fill(named(variables))
    assert {name: array.ctypes.data for name, array in buffers._arrays.items()} == before
    assert (buffers._arrays["w"] == 7).all() and buffers._arrays["n"] == 7


def test_a_full_disk_is_an_error_of_the_disk(variables: list) -> None:
    from train_anywhere.training.keras.checkpoint import Buffers

    buffers = Buffers()
    buffers.fill(named(variables))
    with pytest.raises(OSError, match="No space left"):
        buffers.write(Path("/dev/full"))
