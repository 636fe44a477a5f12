"""Metrics that were sent before."""

from train_anywhere.training.tracking.sent_metrics import SentMetrics


def test_pairs_of_name_and_step_count() -> None:
    sent = SentMetrics([("val/loss", 10), ("train/loss", 20)])
    assert sent.unsent({"val/loss": 1.0, "test/loss": 2.0}, 10) == {"test/loss": 2.0}
    assert sent.unsent({"val/loss": 1.0}, 20) == {"val/loss": 1.0}
    assert sent.unsent({"train/loss": 1.0}, 20) == {}
