"""Seed, save and restore the random states of Python, numpy and torch; see `data/order/random_numbers.py`."""

import random
from typing import Any

import numpy as np
import torch

from train_anywhere.data.order.random_numbers import GENERATORS, get_states, preserve, read_samples, restore

__all__ = ["get_states", "pack", "preserve", "read_samples", "restore", "seed_everything", "unpack"]

GENERATORS.append((torch.get_rng_state, torch.set_rng_state, torch.default_generator.manual_seed))

TWISTER = 624
"""Number of words in the state of a Mersenne twister."""


def seed_everything(seed: int) -> None:
    """Seed Python, numpy and torch on every device."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def pack(states: list[Any]) -> list[Any]:
    """Convert states to lists and a tensor, which a checkpoint can store."""
    (version, words, spare), (kind, numbers, *position), own = states
    return [[version, list(words), spare], [kind, numbers.tolist(), *position], own]


def unpack(states: list[Any]) -> list[Any]:
    """Convert the result of `pack` back to states. Raises ValueError for a position that numpy would not check."""
    (version, words, spare), (kind, numbers, *position), own = states
    if len(numbers) != TWISTER or not 0 <= position[0] <= TWISTER:
        raise ValueError(f"the random states of numpy have position {position[0]} of {len(numbers)}.")
    return [(version, tuple(words), spare), (kind, np.array(numbers, np.uint32), *position), own]
