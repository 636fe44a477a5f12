"""Seed, save and restore the random states of Python and numpy, which a data set may use, and of a framework."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

GENERATORS: list[tuple[Any, Any, Any]] = [
    (random.getstate, random.setstate, random.seed),
    (np.random.get_state, np.random.set_state, np.random.seed),
]
"""Functions that return, set and seed a random state of this process. The module of a framework adds its own."""


def get_states() -> list[Any]:
    """Return the random states of this process."""
    return [get_state() for get_state, _, _ in GENERATORS]


def restore(states: list[Any]) -> None:
    """Set the random states of this process."""
    for (_, set_state, _), state in zip(GENERATORS, states, strict=True):
        set_state(state)


@contextmanager
def preserve() -> Iterator[None]:
    """Restore the random states after the block."""
    before = get_states()
    try:
        yield
    finally:
        restore(before)


def read_samples(
    dataset: Any, indices: np.ndarray, seed: int, epoch: int, collate: Callable[..., Any]
) -> Any:
    """Return the samples of `indices` (int64 [n]), put together by the data set's `collate_fn`, if any, else by `collate`.

    A random or augmented sample is the same for the same (seed, epoch, index).
    """
    samples = []
    with preserve():
        for index in indices.tolist():
            numbers = np.random.SeedSequence((seed, epoch, index)).generate_state(len(GENERATORS))
            for (_, _, set_seed), number in zip(GENERATORS, numbers.tolist(), strict=True):
                set_seed(number)
            samples.append(dataset[index])
        return (getattr(dataset, "collate_fn", None) or collate)(samples)
