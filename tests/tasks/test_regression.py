"""Metrics of a regression from its sums, equal to those computed from the rows."""

import numpy as np
import pytest

from src.tasks.regression import Regression


def sums(predicted: np.ndarray, targets: np.ndarray) -> list[float]:
    """Return the sums named in `Regression.sums`."""
    error = predicted - targets
    return [
        float(s)
        for s in ((error**2).sum(), abs(error).sum(), targets.sum(), (targets**2).sum(), len(targets))
    ]


def test_metrics_are_those_of_the_rows() -> None:
    random = np.random.default_rng(0)
    targets = random.normal(3.0, 2.0, 200)
    predicted = targets + random.normal(0.0, 1.0, 200)
    measured = Regression().measure(sums(predicted, targets))
    error = predicted - targets
    assert measured["loss"] == pytest.approx(np.mean(error**2))
    assert measured["mae"] == pytest.approx(np.mean(abs(error)))
    assert measured["r2"] == pytest.approx(1 - np.var(error) / np.var(targets), abs=0.01)
    assert Regression().measure(sums(targets, targets))["r2"] == 1


def test_nothing_to_explain() -> None:
    assert Regression().measure(sums(np.ones(4), np.full(4, 2.0)))["r2"] == 0
