"""Rates between the points where the device has finished."""

import re
import time

from train_anywhere.monitor.heartbeat import Heartbeat
from train_anywhere.training.reporting.progress import MIN_MEASURED_S, Throughput


def test_rates_of_intervals() -> None:
    meter = Throughput(rows=8, world_size=2, unit="rows", heartbeat=Heartbeat())
    for batch in range(12):
        time.sleep(0.01)
        meter.add_batches(batch % 4 == 3, 1, batch)
    assert len(meter.rates) == 2  # the first interval is left out
    assert all(0 < rate <= 8 / 0.01 for rate in meter.rates)
    assert meter.summary() is None  # too short for a rate
    meter.seconds = MIN_MEASURED_S
    text = meter.summary()
    assert text is not None
    found = re.fullmatch(r"([\d.]+) rows/s on average \(from [\d.]+ to [\d.]+\), ([\d.]+) per device", text)
    assert found and abs(float(found[1]) - 2 * float(found[2])) < 0.3
    meter.world_size = 1
    assert re.fullmatch(r"[\d.]+ rows/s on average \(from [\d.]+ to [\d.]+\)", meter.summary() or "")


def test_a_pause_does_not_count() -> None:
    meter = Throughput(rows=8, world_size=1, unit="rows", heartbeat=Heartbeat())
    began = time.monotonic()
    for _ in range(3):
        meter.add_batches(True, 1, 0)
        meter.add_batches(True, 1, 0)
        meter.restart()
        time.sleep(0.05)
    assert len(meter.rates) == 3
    assert meter.seconds <= time.monotonic() - began - 3 * 0.05


def test_too_little_says_nothing() -> None:
    meter = Throughput(rows=8, world_size=1, unit="rows", heartbeat=Heartbeat())
    meter.add_batches(True, 1, 0)
    assert meter.summary() is None
