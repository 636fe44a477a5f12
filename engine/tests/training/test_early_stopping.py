"""Early stopping counts validations without a gain; the training time of a run has a limit."""

import pytest

from train_anywhere.config.limits import Duration, duration_seconds
from train_anywhere.training.early_stopping import Patience, Timer


@pytest.mark.parametrize(
    ("mode", "delta", "values", "waited"),
    [
        ("max", 0.01, [0.5, 0.6, 0.6], 1),
        ("max", 0.01, [0.5, 0.505, 0.509], 2),  # gains within min_delta
        ("max", 0.01, [0.5, 0.4, 0.52], 0),
        ("min", 0.01, [0.5, 0.4, 0.45], 1),
        ("min", 0.01, [0.5, 0.6, 0.7], 2),
        ("max", 0, [0.5, 0.5, 0.5], 2),  # the same value again is no gain
    ],
)
def test_validations_without_gain_are_counted(make_config, mode, delta, values, waited) -> None:
    overrides = [f"trainer.early_stopping.{o}" for o in (f"mode={mode}", f"min_delta={delta}", "patience=2")]
    rule, patience = make_config(*overrides).trainer.early_stopping, Patience()
    for value in values:
        patience.update(value, rule)
    assert patience.waited == waited
    assert patience.should_stop(rule) == (waited == 2)


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


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("00:00:00:01", 1),
        ("01:02:03:04", 93784),
        ("12:00:00", 43200),
        ("1-12:00:00", 129600),
        ("1:30:00", 5400),
    ],
)
def test_times_of_lightning_and_of_slurm(written: str, seconds: int) -> None:
    assert duration_seconds(written) == seconds and Duration()(written) == (written, "")


def test_the_time_of_earlier_attempts_counts(make_config, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    timer = Timer(make_config("trainer.max_time=00:01:00").trainer, before=50)
    now = 200.0  # the preparation does not count
    timer.start()
    now = 209.0
    assert timer.seconds == 59 and not timer.is_over and not timer.was_over
    now = 210.0
    assert timer.is_over
    timer.stop()
    now = 900.0
    assert timer.seconds == 60 and not timer.is_over  # nothing is left to end
    assert Timer(make_config("trainer.max_time=00:01:00").trainer, before=timer.seconds).was_over
    assert not Timer(make_config().trainer, before=1e9).is_over
    assert not Timer(
        make_config("trainer.max_time=00:01:00", "trainer.fast_dev_run=true").trainer, 1e9
    ).is_over


def test_the_limit_counts_as_reached_if_another_rank_reached_it(make_config) -> None:
    """A resumed run would otherwise train the difference between the clocks of two ranks."""
    trainer = make_config("trainer.max_time=00:01:00").trainer
    timer = Timer(trainer, before=20)
    timer.start()
    assert "60 s of training are over at step 7 (trainer.max_time=00:01:00)" in timer.end(7)
    timer.stop()
    assert Timer(trainer, before=timer.seconds).was_over
