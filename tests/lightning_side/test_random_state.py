"""Random numbers that go on where they stood."""

import random

import numpy as np
import torch

from src.lightning_side.random_state import SIZE, _restore, _state, seed_everything

CPU = torch.device("cpu")


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_all_three_go_on() -> None:
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
