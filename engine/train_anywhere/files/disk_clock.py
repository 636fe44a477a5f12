"""The clock of a disk's time stamps: machines that share the disk may disagree about the time."""

import os
import time
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryFile


def disk_time(folder: Path) -> float:
    """Return the modification time, in unix seconds, that a file written into `folder` now would get.

    If no file can be written there, return the time of this machine.
    """
    try:
        return time.time() + _clock_offset(folder, int(time.monotonic() // 60))
    except OSError:
        return time.time()


@lru_cache(maxsize=1024)
def _clock_offset(folder: Path, minute: int) -> float:
    """Return the seconds by which the disk's clock is ahead of this machine's, measured once a minute. Raises OSError."""
    with TemporaryFile(dir=folder) as file:
        offset = os.fstat(file.fileno()).st_mtime - time.time()
    return offset if abs(offset) > 1 else 0.0  # time stamps of files are coarse
