"""Seed, save and restore the random states of Python, numpy and torch; see `data/order/random_numbers.py`."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from train_anywhere.data.order import random_numbers

TWISTER = 624
"""Number of words in the state of a Mersenne twister."""

States = tuple[random_numbers.States, torch.Tensor]


def get_states() -> States:
    """Return the random states of this process."""
    return random_numbers.get_states(), torch.default_generator.get_state()


def restore(states: States) -> None:
    """Set the random states of this process."""
    random_numbers.restore(states[0])
    torch.default_generator.set_state(states[1])


def seed_everything(seed: int) -> None:
    """Seed Python, numpy and torch on every device."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def reseed(*numbers: int) -> None:
    """Seed Python, numpy and torch from numbers such as (seed, epoch, row)."""
    torch.default_generator.manual_seed(random_numbers.reseed(*numbers))


@contextmanager
def preserve() -> Iterator[None]:
    """Restore the random states after the block."""
    with random_numbers.preserve(), torch.random.fork_rng(devices=()):
        yield


def pack(states: States) -> list[Any]:
    """Convert states to lists and a tensor, which a checkpoint can store."""
    ((version, words, spare), (kind, numbers, *position)), own = states
    return [[version, list(words), spare], [kind, numbers.tolist(), *position], own]


def unpack(states: list[Any]) -> States:
    """Convert the result of `pack` back to states. Raises ValueError for a position that numpy would not check."""
    (version, words, spare), (kind, numbers, *position), own = states
    if len(numbers) != TWISTER or not 0 <= position[0] <= TWISTER:
        raise ValueError(f"the random states of numpy have position {position[0]} of {len(numbers)}.")
    return ((version, tuple(words), spare), (kind, np.array(numbers, np.uint32), *position)), own
