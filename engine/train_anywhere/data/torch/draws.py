"""`data/order/random_numbers.py` with torch's random numbers as well."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from train_anywhere.data.order import random_numbers

States = tuple[random_numbers.States, torch.Tensor]


def states() -> States:
    """Where the random numbers of this process stand."""
    return random_numbers.states(), torch.default_generator.get_state()


def restore(states: States) -> None:
    """Go on from there."""
    random_numbers.restore(states[0])
    torch.default_generator.set_state(states[1])


def begin(*numbers: int) -> None:
    """Begin anew with numbers such as (seed, epoch, row)."""
    torch.default_generator.manual_seed(random_numbers.begin(*numbers))


@contextmanager
def kept() -> Iterator[None]:
    """What is drawn within the block changes no random number after it."""
    before = states()
    try:
        yield
    finally:
        restore(before)


def packed(states: States) -> list[Any]:
    """As plain lists and a tensor, which a checkpoint may hold."""
    ((version, words, spare), (kind, numbers, *position)), own = states
    return [[version, list(words), spare], [kind, numbers.tolist(), *position], own]


def unpacked(states: list[Any]) -> States:
    """What `packed` was given."""
    (version, words, spare), (kind, numbers, *position), own = states
    return ((version, tuple(words), spare), (kind, np.array(numbers, np.uint32), *position)), own
