"""Batches that are read before they are asked for: the same ones, and an error where it belongs."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.tests.properties.cases import bounded
from train_anywhere.data.order import prefetch as module
from train_anywhere.data.order.prefetch import MAX_BATCHES, read_ahead


def numbers(length: int, damaged: int | None, read: list[int], pause: float = 0.0) -> Iterator[int]:
    """From 0; at the damaged one it fails. `read` gets those that were asked for."""
    for number in range(length):
        read.append(number)
        time.sleep(pause)
        if number == damaged:
            raise OSError(f"{number} can't be read.")
        yield number


@bounded(30)
@given(st.integers(0, 3 * MAX_BATCHES), st.none() | st.integers(0, 3 * MAX_BATCHES))
def test_the_same_batches_and_the_same_end(length: int, damaged: int | None) -> None:
    found: list[Any] = []
    for batches in (numbers(length, damaged, []), read_ahead(numbers(length, damaged, []))):
        taken: list[Any] = []
        try:
            taken.extend(batches)
        except OSError as error:
            taken.append(str(error))
        found.append(taken)
    assert found[0] == found[1]


def test_so_many_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_GROUP_S", 10.0)  # however busy the machine is
    read: list[int] = []
    batches = read_ahead(numbers(3 * MAX_BATCHES, None, read))
    assert next(batches) == 0 and len(read) == MAX_BATCHES
    assert [next(batches) for _ in range(MAX_BATCHES)][-1] == MAX_BATCHES and len(read) == 2 * MAX_BATCHES


def test_no_batch_waits_for_slow_ones_after_it() -> None:
    read: list[int] = []
    assert next(read_ahead(numbers(9, None, read, pause=1.1 * module.MAX_GROUP_S))) == 0
    assert read == [0]
