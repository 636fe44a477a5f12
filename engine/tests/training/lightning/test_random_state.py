"""Random numbers continue from a saved state."""

import random

import numpy as np
import pytest
import torch

from train_anywhere.errors import CheckpointError
from train_anywhere.training.lightning.checkpoint.position import (
    SIZE,
    STATE,
    RandomState,
    _restore,
    _state,
    seed_everything,
)

CPU = torch.device("cpu")


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_all_three_continue() -> None:
    seed_everything(3)
    for _ in range(700):  # past one refill of the Mersenne twisters
        draw()
    state = _state(CPU)
    expected = [draw() for _ in range(5)]
    seed_everything(4)
    assert [draw() for _ in range(5)] != expected
    _restore(state)
    assert [draw() for _ in range(5)] == expected


def test_a_state_has_one_size() -> None:
    """All ranks send as many bytes."""
    for seed in range(50):
        seed_everything(seed)
        random.gauss(0, 1)  # keeps a spare number
        assert _state(CPU).shape == (SIZE,)


def test_large_seeds_are_fine() -> None:
    seed_everything(2**40 + 1)
    first = draw()
    seed_everything(2**40 + 1)
    assert draw() == first


def load(saved: object, said: list[str]) -> RandomState:
    states = RandomState(1, said.append)
    states.on_load_checkpoint(None, None, {"random_states": saved})  # type: ignore[arg-type]
    return states


@pytest.mark.parametrize(
    "saved",
    [
        None,
        "states",
        torch.zeros(2, 7, dtype=torch.uint8),
        torch.zeros(2, SIZE),
        torch.zeros(0, SIZE, dtype=torch.uint8),
    ],
)
def test_what_is_no_state_is_refused(saved: object) -> None:
    with pytest.raises(CheckpointError, match="the checkpoint's random states are"):
        load(saved, [])


@pytest.mark.parametrize("field", ["python", "numpy_position"])
def test_a_position_behind_the_state_is_refused(field: str) -> None:
    state = np.zeros(1, STATE)
    state[field] = 625
    with pytest.raises(CheckpointError, match="a position above 624"):
        load(torch.from_numpy(state.view(np.uint8).reshape(1, SIZE)), [])


def test_what_torch_does_not_take_is_a_sentence() -> None:
    with pytest.raises(CheckpointError, match="the checkpoint's random states are not torch's"):
        _restore(torch.zeros(SIZE, dtype=torch.uint8))
