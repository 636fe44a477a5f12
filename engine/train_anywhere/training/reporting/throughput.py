"""Training speed in rows per second, measured between points at which the training thread has synchronized with the device."""

import statistics
import time

MIN_MEASURED_S = 5.0
"""Seconds of measured intervals that a mean rate needs."""


class Throughput:
    """Rates of the intervals between two metric reports; a report reads values from the device, so the device has finished by then.

    The first interval is left out: it includes compilation, memory allocation and the start of the input pipeline.

    Args:
        rows: rows, or units, of one batch over all ranks; updated before each report if it varies.
        world_size: devices that share the global batch.
        unit: plural name of what is counted, such as "samples".
        min_seconds: seconds that a device at its peak needs for one unit; None if unknown.
    """

    def __init__(self, rows: float, world_size: int, unit: str, min_seconds: float | None = None) -> None:
        self.rows, self.world_size, self.unit = rows, world_size, unit
        self.min_seconds = min_seconds
        self.rates: list[float] = []
        self.seconds = 0.0
        self._batches = 0
        self._since: float | None = None

    def add_batches(self, synchronized: bool, count: int = 1) -> None:
        """Count trained batches; with `synchronized`, the device has finished them, and an interval ends."""
        self._batches += count
        if not synchronized:
            return
        now = time.perf_counter()
        if self._since is not None and now > self._since:
            self.rates.append(self._batches * self.rows / (now - self._since))
            self.seconds += now - self._since
        self._batches, self._since = 0, now

    def pause(self) -> None:
        """Discard the open interval, because a validation or a checkpoint interrupts it."""
        self._batches, self._since = 0, None

    def mean(self) -> float | None:
        """Return the mean rate in rows per second over all ranks; None if nothing was measured."""
        return statistics.mean(self.rates) if self.rates else None

    def summary(self) -> str | None:
        """Return the mean rate and 1.96 sigma (95 % of a normal distribution) as a phrase; None if too little was measured."""
        if len(self.rates) < 2 or self.seconds < MIN_MEASURED_S:
            return None
        mean, spread = statistics.mean(self.rates), 1.96 * statistics.stdev(self.rates)
        total = f"{mean:.1f} +- {spread:.1f} {self.unit}/s"
        each = f" ({mean / self.world_size:.1f} per device)" if self.world_size > 1 else ""
        return f"{total}{each} in {len(self.rates)} intervals{self.peak_share(mean)}"

    def peak_share(self, rate: float) -> str:
        """Return the share of their peak that the devices reach at a total `rate` as a phrase; empty if the peak is unknown."""
        if self.min_seconds is None:
            return ""
        return f", {100 * rate / self.world_size * self.min_seconds:.1f}% of the chip's peak"
