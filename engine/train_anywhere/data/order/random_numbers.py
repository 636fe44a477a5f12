"""The random numbers of Python and numpy, of which a data set may draw: begun anew from numbers, and put back."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

States = tuple[Any, Any]


def states() -> States:
    """Where the random numbers of this process stand."""
    return random.getstate(), np.random.get_state()


def restore(states: States) -> None:
    """Go on from there."""
    random.setstate(states[0])
    np.random.set_state(states[1])


def begin(*numbers: int) -> int:
    """Begin anew with numbers such as (seed, epoch, row); returns a seed for the generator of a framework."""
    first, second, third = np.random.SeedSequence(numbers).generate_state(3)
    random.seed(int(first))
    np.random.seed(int(second))
    return int(third)


@contextmanager
def kept() -> Iterator[None]:
    """What is drawn within the block changes no random number after it."""
    before = states()
    try:
        yield
    finally:
        restore(before)
