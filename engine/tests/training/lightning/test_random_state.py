"""Random numbers continue from a saved state."""

import random

import numpy as np
import torch

from train_anywhere.data.torch import random_states
from train_anywhere.data.torch.random_states import seed_everything


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_all_three_continue() -> None:
    seed_everything(3)
    for _ in range(700):  # past one refill of the Mersenne twisters
        draw()
    random.gauss(0, 1)  # keeps a spare number
    state = random_states.pack(random_states.get_states())
    expected = [draw() for _ in range(5)]
    seed_everything(4)
    assert [draw() for _ in range(5)] != expected
    random_states.restore(random_states.unpack(state))
    assert [draw() for _ in range(5)] == expected


def test_large_seeds_are_fine() -> None:
    seed_everything(2**40 + 1)
    first = draw()
    seed_everything(2**40 + 1)
    assert draw() == first
