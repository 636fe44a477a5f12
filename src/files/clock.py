"""The clock by which a disk stamps its files: machines that share the disk may disagree about the time."""

import os
import time
from pathlib import Path
from tempfile import TemporaryFile

MEASURED_FOR_S = 60.0
"""Seconds after which the difference between the two clocks is measured again."""

_ahead: dict[int, tuple[float, float]] = {}
"""For each device when it was measured (monotonic seconds), and by how many seconds the disk's clock is ahead of this machine's."""


def disk_time(folder: Path) -> float:
    """Return the present time, in unix seconds, as a file written into `folder` now would have it.

    If the folder takes no file, this is the time of this machine.
    """
    try:
        device = folder.stat().st_dev
        measured, ahead = _ahead.get(device, (float("-inf"), 0.0))
        if time.monotonic() - measured > MEASURED_FOR_S:
            ahead = _measure(folder)
            _ahead[device] = time.monotonic(), ahead
        return time.time() + ahead
    except OSError:
        return time.time()


def _measure(folder: Path) -> float:
    """Return how far ahead the disk's clock is. Raises OSError: the folder takes no file."""
    with TemporaryFile(dir=folder) as file:
        ahead = os.fstat(file.fileno()).st_mtime - time.time()
    return ahead if abs(ahead) > 1 else 0.0  # the stamps of files are coarse
