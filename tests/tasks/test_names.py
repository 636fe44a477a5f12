"""Sums become metrics with names."""

import pytest

from src.config.checks import METRICS
from src.tasks import METRIC_NAMES, PARTS, SUMS, metrics, names


def test_sums_become_means() -> None:
    assert metrics("val", [3.0, 2.0, 4.0]) == {"val/loss": 0.75, "val/acc": 0.5}


def test_no_sample_gives_no_metric() -> None:
    assert metrics("val", [0.0, 0.0, 0.0]) == {}


@pytest.mark.parametrize("part", PARTS)
def test_every_metric_has_its_name(part: str) -> None:
    assert list(metrics(part, [1.0] * len(SUMS))) == names(part)


def test_every_metric_that_can_be_monitored_is_measured() -> None:
    assert list(METRICS) == names("train", "val")
    assert [*METRICS, *names("test")] == list(METRIC_NAMES)
