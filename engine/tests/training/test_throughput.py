"""Rates between the points where the device has finished."""

import re
import time

from train_anywhere.training.reporting.throughput import MIN_MEASURED_S, Throughput


def test_rates_of_intervals() -> None:
    meter = Throughput(rows=8, world_size=2, unit="rows")
    for batch in range(12):
        time.sleep(0.01)
        meter.add_batches(synchronized=batch % 4 == 3)
    assert len(meter.rates) == 2  # the first interval is left out
    assert all(0 < rate <= 8 / 0.01 for rate in meter.rates)
    assert meter.summary() is None  # too short to say anything
    meter.seconds = MIN_MEASURED_S
    text = meter.summary()
    assert text is not None
    each, total = (float(n) for n in re.findall(r"([\d.]+) \+-", text))
    assert abs(total - 2 * each) < 0.3
    assert "in total (2 intervals)" in text


def test_a_pause_does_not_count() -> None:
    meter = Throughput(rows=8, world_size=1, unit="rows")
    began = time.perf_counter()
    for _ in range(3):
        meter.add_batches(synchronized=True)
        meter.add_batches(synchronized=True)
        meter.pause()
        time.sleep(0.05)
    assert len(meter.rates) == 3
    assert meter.seconds <= time.perf_counter() - began - 3 * 0.05


def test_too_little_says_nothing() -> None:
    meter = Throughput(rows=8, world_size=1, unit="rows")
    meter.add_batches(synchronized=True)
    assert meter.summary() is None
