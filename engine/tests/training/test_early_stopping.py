"""Early stopping counts validations without a gain."""

import pytest

from train_anywhere.training.early_stopping import Patience


@pytest.mark.parametrize(
    ("mode", "values", "waited"),
    [
        ("max", [0.5, 0.6, 0.6], 1),
        ("max", [0.5, 0.505, 0.509], 2),  # gains within min_delta
        ("max", [0.5, 0.4, 0.52], 0),
        ("min", [0.5, 0.4, 0.45], 1),
        ("min", [0.5, 0.6, 0.7], 2),
    ],
)
def test_validations_without_gain_are_counted(make_config, mode, values, waited) -> None:
    overrides = [f"trainer.early_stopping.{o}" for o in (f"mode={mode}", "min_delta=0.01", "patience=2")]
    rule, patience = make_config(*overrides).trainer.early_stopping, Patience()
    for value in values:
        patience.update(value, rule)
    assert patience.waited == waited
    assert patience.should_stop(rule) == (waited == 2)


def test_the_same_value_again_is_no_gain(make_config) -> None:
    overrides = [f"trainer.early_stopping.{o}" for o in ("mode=max", "min_delta=0", "patience=2")]
    rule, patience = make_config(*overrides).trainer.early_stopping, Patience()
    for _ in range(3):
        patience.update(0.5, rule)
    assert patience.waited == 2


def test_a_value_that_is_not_a_number_is_never_the_best(make_config) -> None:
    rule, patience = make_config("trainer.early_stopping.patience=3").trainer.early_stopping, Patience()
    for value in (float("nan"), 0.5, float("nan"), 0.4, float("inf"), float("-inf")):
        patience.update(value, rule)
    assert (patience.best, patience.waited) == (0.4, 2)


@pytest.mark.parametrize(
    ("patience", "over"), [("null", [False] * 3), ("0", [False, True, True]), ("2", [False, False, True])]
)
def test_patience(make_config, patience: str, over: list[bool]) -> None:
    """None never ends a run, and 0 is taken as 1."""
    rule = make_config(f"trainer.early_stopping.patience={patience}").trainer.early_stopping
    assert [Patience(0.5, waited).should_stop(rule) for waited in range(3)] == over


def test_a_postponed_end_is_that_of_the_next_worse_validation(make_config) -> None:
    rule, patience = make_config("trainer.early_stopping.patience=2").trainer.early_stopping, Patience(0.5, 7)
    patience.postpone(rule)
    assert not patience.should_stop(rule)
    patience.update(1.0, rule)
    assert patience.should_stop(rule)
