"""Metrics that were sent before."""

from train_anywhere.training.tracking.once import Once


def test_pairs_of_name_and_step_count() -> None:
    once = Once([("val/loss", 10), ("train/loss", 20)])
    assert once.fresh({"val/loss": 1.0, "test/loss": 2.0}, 10) == {"test/loss": 2.0}
    assert once.fresh({"val/loss": 1.0}, 20) == {"val/loss": 1.0}
    assert once.fresh({"train/loss": 1.0}, 20) == {}
