"""Position and early stopping."""

import pytest

from src.training.keras.position import State
from src.training.plan import Plan

PLAN = Plan(
    rows=8,
    train_batches=6,
    accumulate=2,
    steps_per_epoch=3,
    max_epochs=2,
    total_steps=5,
    val_batches=1,
    test_batches=1,
)


def test_walks_through_the_epochs(make_config) -> None:
    rule = make_config().trainer.early_stopping
    state, seen = State(), []
    while not state.over(PLAN, rule):
        state.advance(PLAN)
        seen.append((state.step, state.epoch, state.batch, state.pending))
        if state.pending:
            state.close_epoch(PLAN)
    assert seen == [(1, 0, 2, False), (2, 0, 4, False), (3, 0, 6, True), (4, 1, 2, False), (5, 1, 4, True)]
    assert (state.epoch, state.batch) == (1, 4)  # cut short by total_steps: a longer run would go on here


def test_a_pending_epoch_is_not_over(make_config) -> None:
    state = State(epoch=1, batch=4, step=5, pending=True)
    assert not state.over(PLAN, make_config().trainer.early_stopping)


@pytest.mark.parametrize(
    ("mode", "values", "bad"),
    [
        ("max", [0.5, 0.6, 0.6], 1),
        ("max", [0.5, 0.505, 0.509], 2),  # gains within min_delta
        ("max", [0.5, 0.4, 0.52], 0),
        ("min", [0.5, 0.4, 0.45], 1),
        ("min", [0.5, 0.6, 0.7], 2),
    ],
)
def test_early_stopping_counts_validations_without_gain(
    make_config, mode: str, values: list[float], bad: int
) -> None:
    overrides = [
        f"trainer.early_stopping.{o}"
        for o in (f"mode={mode}", "min_delta=0.01", "patience=2", "monitor=val/acc")
    ]
    rule, state = make_config(*overrides).trainer.early_stopping, State(step=1)
    for value in values:
        state.metrics["val/acc"] = value
        state.judge(rule)
    assert state.bad == bad
    assert state.over(PLAN, rule) == (bad == 2)


@pytest.mark.parametrize("best", [None, 0.25])
def test_numbers_tell_everything_that_ranks_agree_on(best: float | None) -> None:
    state = State(epoch=1, batch=4, step=5, metrics={"val/acc": 1.0}, pending=True, best=best, bad=3)
    assert State.from_numbers(state.numbers(), state.metrics) == state


def test_a_metric_that_is_no_number_is_never_the_best(make_config) -> None:
    rule = make_config("trainer.early_stopping.patience=3").trainer.early_stopping
    state = State()
    for value in (float("nan"), 0.5, float("nan"), 0.4):
        state.metrics = {"val/loss": value}
        state.judge(rule)
    assert (state.best, state.bad) == (0.4, 0)
