"""Plans, intervals, kept checkpoints, times and sizes: what holds for any numbers."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from engine.tests.properties.cases import DIGITS, TEXT, bounded, composed
from train_anywhere.checkpoints.disk.manifest import SavedCheckpoint
from train_anywhere.checkpoints.store import Retention
from train_anywhere.config.load import load
from train_anywhere.errors import ConfigError
from train_anywhere.features.observers import MAX_OVERHEAD, Interval, mtbf, optimal
from train_anywhere.slurm.script import units
from train_anywhere.training.plan import make_plan

LIMITS = st.integers(0, 50) | st.floats(0, 1)


@bounded(300)
@given(st.data())
def test_a_plan_adds_up_or_is_refused(data: st.DataObject) -> None:
    config = load(composed())
    length = st.integers(0, 10**5)
    trainer = dataclasses.replace(
        config.trainer,
        max_epochs=data.draw(st.integers(1, 100)),
        max_steps=data.draw(st.none() | st.integers(1, 10**4)),
        limit_train_batches=data.draw(LIMITS),
        limit_val_batches=data.draw(LIMITS),
        accumulate_grad_batches=data.draw(st.integers(1, 20)),
        fast_dev_run=data.draw(st.booleans()),
    )
    batch = dataclasses.replace(config.data, batch_size=data.draw(st.integers(1, 4096)))
    config = dataclasses.replace(config, trainer=trainer, data=batch)
    lengths, world = [data.draw(length) for _ in range(3)], data.draw(st.integers(1, 64))
    try:
        plan = make_plan(config, *(-(-n // config.data.batch_size) for n in lengths), world)
    except ConfigError as error:
        assert error.problems and all(p and "\n" not in p for p in error.problems)
        return
    assert plan.batch_per_rank * world == config.data.batch_size
    assert plan.train_batches == plan.steps_per_epoch * plan.accumulate
    assert 1 <= plan.train_batches <= -(-lengths[0] // config.data.batch_size)
    assert (
        (plan.max_epochs - 1) * plan.steps_per_epoch
        < plan.total_steps
        <= plan.max_epochs * plan.steps_per_epoch
    )
    assert plan.total_steps <= (trainer.max_steps or plan.total_steps)
    assert plan.max_epochs <= trainer.max_epochs
    assert 0 <= plan.val_batches <= -(-lengths[1] // config.data.batch_size)
    assert 0 <= plan.test_batches <= -(-lengths[2] // config.data.batch_size)


@bounded()
@given(st.floats(0, 1e6), st.floats(0, 1e6), st.integers(1, 10**6))
def test_an_interval_is_a_time_that_grows_with_its_cost(one: float, other: float, devices: int) -> None:
    cheap, dear = (optimal(cost, mtbf(devices)) for cost in sorted((one, other)))
    assert 0 <= cheap <= dear < math.inf
    assert max(one, other) <= MAX_OVERHEAD * dear * (1 + 1e-9)
    assert optimal(one, mtbf(devices + 1)) <= optimal(one, mtbf(devices))


@bounded()
@given(
    st.lists(st.floats(-1e4, 1e4) | st.sampled_from([math.nan, math.inf, -math.inf]), max_size=5),
    st.none() | st.floats(1e-3, 1e6),
)
def test_the_next_checkpoint_has_a_time(costs: list[float], seconds: float | None) -> None:
    rule = dataclasses.replace(load(composed()).checkpoint, interval="auto", every_n_seconds=seconds)
    interval = Interval(rule, 8, clock=itertools.count().__next__)
    for cost in costs:
        interval.after_checkpoint(cost)
        assert 0 <= interval.seconds < math.inf


@st.composite
def checkpoints(draw: st.DrawFn) -> list[SavedCheckpoint]:
    """Draw checkpoints of different steps in any order, some without a value."""
    steps = draw(st.lists(st.integers(1, 40), unique=True, max_size=12))
    values = st.none() | st.floats(-1, 1) | st.sampled_from([math.nan, math.inf, -math.inf])
    return [SavedCheckpoint(s, s // 4, s % 4, {}, draw(values), "mine", Path(str(s))) for s in steps]


@bounded(300)
@given(checkpoints(), st.sampled_from(["min", "max"]), st.integers(1, 4), st.none() | st.integers(1, 3))
def test_the_newest_and_the_best_are_always_kept(saved, mode, last, epochs) -> None:
    rule = Retention(mode, last, epochs)
    kept = {int(p.name) for p in rule.kept(saved)}
    newest = sorted(s.step for s in saved)[-last:]
    assert kept >= set(newest)
    numbers = [s for s in saved if s.value is not None and math.isfinite(s.value)]
    best = rule.best(saved)
    if numbers:
        assert best is not None and best.step in kept
        assert best.value == (max if mode == "max" else min)(s.value for s in numbers if s.value is not None)
    else:
        assert best is None
    other = {s.step for s in saved if epochs and s.batch == 0 and s.epoch and s.epoch % epochs == 0}
    assert kept == set(newest) | other | ({best.step} if best else set())


@bounded()
@given(checkpoints(), st.randoms(use_true_random=False))
def test_their_order_does_not_matter(saved: list[SavedCheckpoint], numbers: Any) -> None:
    mixed = list(saved)
    numbers.shuffle(mixed)
    assert Retention("max", 2).kept(mixed) == Retention("max", 2).kept(saved)


FORMS: tuple[tuple[str, Callable[..., int]], ...] = (
    ("{2}", lambda d, h, m, s: m * 60),
    ("{2}:{3:02}", lambda d, h, m, s: m * 60 + s),
    ("{1}:{2:02}:{3:02}", lambda d, h, m, s: (h * 60 + m) * 60 + s),
    ("{0}-{1}", lambda d, h, m, s: (d * 24 + h) * 3600),
    ("{0}-{1}:{2:02}", lambda d, h, m, s: ((d * 24 + h) * 60 + m) * 60),
    ("{0}-{1}:{2:02}:{3:02}", lambda d, h, m, s: ((d * 24 + h) * 60 + m) * 60 + s),
)


@bounded()
@given(st.sampled_from(FORMS), st.integers(0, 99), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_every_form_of_a_time(form: tuple[str, Callable[..., int]], d: int, h: int, m: int, s: int) -> None:
    expected = form[1](d, h, m, s)
    text = form[0].format(d, h, m, s)
    assert units.seconds(text) == expected
    assert units.seconds(units.clock(expected)) == expected


def refused(read: Callable[[Any], int], value: Any) -> Iterator[str]:
    """Return the message if a value is refused. A number is never negative."""
    try:
        assert read(value) >= 0
    except ValueError as error:
        yield str(error)


@bounded(300)
@given(st.text(DIGITS | st.sampled_from("0123456789:-.GMKTgb "), max_size=9) | TEXT)
def test_any_text_is_a_time_or_size_or_refused(text: str) -> None:
    for read in (units.seconds, units.megabytes):
        said = list(refused(read, text))
        assert said or text.isascii()
        assert all("use" in sentence for sentence in said)


@bounded()
@given(st.integers(0, 10**7))
def test_a_size_is_read_back(mib: int) -> None:
    assert units.megabytes(units.short_size(mib)) == mib
