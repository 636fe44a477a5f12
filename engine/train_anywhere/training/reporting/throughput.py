"""Rows per second of training, measured between the points at which the training thread has waited for the device."""

import statistics
import time

MIN_MEASURED_S = 5.0
"""Seconds of measured intervals below which a rate says nothing."""


class Throughput:
    """Rates of the intervals between two metric reports; a report reads values back, so the device is done by then.

    The first interval is left out: it holds compilation, memory set-up and the start of the input pipeline.

    Args:
        rows: of one batch, over all ranks; set before each report where they differ.
        unit: what a row is, in the plural.
        world_size: ranks that train together.
        least: seconds that a device needs for one of the unit at its peak; None: nobody knows.
    """

    def __init__(self, rows: float, world_size: int, unit: str, least: float | None = None) -> None:
        self.rows, self.world_size, self.unit = rows, world_size, unit
        self.least = least
        self.rates: list[float] = []
        self.seconds = 0.0
        self._batches = 0
        self._since: float | None = None

    def batch(self, waited: bool, count: int = 1) -> None:
        """So many batches were trained; `waited`: the device has finished them."""
        self._batches += count
        if not waited:
            return
        now = time.perf_counter()
        if self._since is not None and now > self._since:
            self.rates.append(self._batches * self.rows / (now - self._since))
            self.seconds += now - self._since
        self._batches, self._since = 0, now

    def pause(self) -> None:
        """A validation or a checkpoint comes between: the open interval does not count."""
        self._batches, self._since = 0, None

    def mean(self) -> float | None:
        """Rows per second over all ranks; None if nothing was measured."""
        return statistics.mean(self.rates) if self.rates else None

    def summary(self) -> str | None:
        """Mean and 1.96 sigma (95 % of a normal distribution) per device and in all; None if too little was measured."""
        if len(self.rates) < 2 or self.seconds < MIN_MEASURED_S:
            return None
        mean, spread = statistics.mean(self.rates), 1.96 * statistics.stdev(self.rates)
        each = f"{mean / self.world_size:.1f} +- {spread / self.world_size:.1f} {self.unit}/s per device"
        said = f"{each}, {mean:.1f} +- {spread:.1f} on {self.world_size} in {len(self.rates)} intervals"
        return said + self.share(mean)

    def share(self, rate: float) -> str:
        """Which part of their peak the devices reach with this rate, over all of them; nothing where it is not known."""
        if self.least is None:
            return ""
        return f", {100 * rate / self.world_size * self.least:.1f} % of the chip's peak"
