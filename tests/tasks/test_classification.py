"""Metrics of a classification from its sums."""

from src.tasks.classification import Classification


def test_sums_become_means() -> None:
    assert Classification().report("val", [3.0, 2.0, 4.0]) == {"val/loss": 0.75, "val/acc": 0.5}
