"""The training time of a run, and its limit."""

import pytest

from train_anywhere.config.limits import Duration, duration_seconds
from train_anywhere.training.early_stopping import Timer


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
