"""The clock by which a disk stamps its files: machines that share the disk may disagree about the time."""

import os
import time
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryFile


def disk_time(folder: Path) -> float:
    """Return the present time, in unix seconds, as a file written into `folder` now would have it.

    If the folder takes no file, this is the time of this machine.
    """
    try:
        return time.time() + _ahead(folder, int(time.monotonic() // 60))
    except OSError:
        return time.time()


@lru_cache(maxsize=1024)
def _ahead(folder: Path, minute: int) -> float:
    """Return the seconds by which the disk's clock is ahead of this machine's. Raises OSError: the folder takes no file."""
    with TemporaryFile(dir=folder) as file:
        ahead = os.fstat(file.fileno()).st_mtime - time.time()
    return ahead if abs(ahead) > 1 else 0.0  # the stamps of files are coarse
