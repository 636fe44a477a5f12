"""When a checkpoint is due: by steps, by seconds, by its cost. Which ones are kept, and why."""

import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from train_anywhere.checkpoints.disk.manifest import SavedCheckpoint
from train_anywhere.checkpoints.store import Retention
from train_anywhere.config.schema import Checkpoint, Config
from train_anywhere.features.observers import (
    FIRST_INTERVAL_S,
    MAX_OVERHEAD,
    MIN_INTERVAL_S,
    Interval,
    mtbf,
    optimal,
)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def config(make_config: Callable[..., Config]) -> Checkpoint:
    return make_config().checkpoint


def test_nothing_is_due_by_default(config: Checkpoint) -> None:
    clock = Clock()
    interval = Interval(config, 1, clock)
    clock.now += 1e9
    assert not interval.requests_checkpoint() and interval.next_step(0) is None


def test_by_steps(config: Checkpoint) -> None:
    interval = Interval(replace(config, every_n_steps=5), 1, Clock())
    wanted = [interval.next_step(step) for step in (0, 4, 5, 14)]
    assert wanted == [5, 5, 10, 15] and interval.at_step(5)


def test_by_seconds_since_the_newest(config: Checkpoint) -> None:
    clock = Clock()
    interval = Interval(replace(config, every_n_seconds=30.0), 1, clock)
    clock.now += 29
    assert not interval.requests_checkpoint()
    clock.now += 1
    assert interval.requests_checkpoint()
    interval.after_checkpoint(0.5)
    assert not interval.requests_checkpoint()


def test_auto_measures_first(config: Checkpoint) -> None:
    interval = Interval(replace(config, interval="auto"), 16, Clock())
    assert interval.seconds == FIRST_INTERVAL_S
    interval.after_checkpoint(0.2)
    assert (
        interval.seconds == optimal(0.2, mtbf(16)) == pytest.approx(math.sqrt(2 * 0.2 * 50_000 * 3600 / 16))
    )


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        (0.0, MIN_INTERVAL_S),
        (-5.0, MIN_INTERVAL_S),
        (1e-12, MIN_INTERVAL_S),
        (math.nan, FIRST_INTERVAL_S),
        (math.inf, FIRST_INTERVAL_S),
    ],
)
def test_a_cost_that_a_clock_can_not_have_measured(config: Checkpoint, cost: float, expected: float) -> None:
    interval = Interval(replace(config, interval="auto"), 10**9, Clock())
    interval.after_checkpoint(cost)
    assert interval.seconds == expected


@pytest.mark.parametrize("cost", [0.001, 1.0, 100.0])
def test_training_waits_less_than_one_percent(cost: float) -> None:
    assert cost / optimal(cost, mtbf=1.0) <= MAX_OVERHEAD


def test_the_optimum_is_one() -> None:
    """Simulated failures: other intervals lose more time."""
    cost, mean = 1.0, 20_000.0
    best = optimal(cost, mean)

    def lost(interval: float) -> float:
        numbers, total = random.Random(0), 0.0
        for _ in range(20_000):
            life = numbers.expovariate(1 / mean)
            total += life // (interval + cost) * cost + life % (interval + cost)
        return total

    assert lost(best) < min(lost(best / 2), lost(best * 2))


def saved(step: int, value: float | None = None, epoch: int = 0, batch: int = 0) -> SavedCheckpoint:
    return SavedCheckpoint(step, epoch, batch, {}, value, "mine", Path(str(step)))


def test_of_equal_ones_the_newest_is_best() -> None:
    found = Retention("max", 1).best([saved(1, 0.5), saved(2, 0.5), saved(3, 0.4)])
    assert found is not None and found.step == 2
    assert Retention("max", 1).best([saved(1)]) is None
