"""Seed, save and restore the random states of Python and numpy, which a data set may use."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

States = tuple[Any, Any]


def get_states() -> States:
    """Return the random states of this process."""
    return random.getstate(), np.random.get_state()


def restore(states: States) -> None:
    """Set the random states of this process."""
    random.setstate(states[0])
    np.random.set_state(states[1])


def reseed(*numbers: int) -> int:
    """Seed Python and numpy from numbers such as (seed, epoch, row); return a seed for the generator of a framework."""
    first, second, third = np.random.SeedSequence(numbers).generate_state(3)
    random.seed(int(first))
    np.random.seed(int(second))
    return int(third)


@contextmanager
def preserve() -> Iterator[None]:
    """Restore the random states after the block."""
    before = get_states()
    try:
        yield
    finally:
        restore(before)
