"""Writing and flushing to disk, finding disk errors, and printing a line to the log."""

import os
import sys
from pathlib import Path

from train_anywhere.errors import iterate_causes

CHUNK = 1 << 20
"""Bytes per read and write: few enough to stay in a core's cache, which saves the training memory bandwidth."""


def write_all(descriptor: int, data: memoryview) -> None:
    """Write all of `data`: one call of `os.write` may write only a part of it if the disk is nearly full."""
    while data:
        data = data[os.write(descriptor, data) :]


def sync_folder(folder: Path) -> None:
    """Flush a folder, so that files created and renamed in it survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def find_disk_error(error: BaseException | None) -> OSError | None:
    """Return the OSError that caused an error, if any."""
    return next((one for one in iterate_causes(error) if isinstance(one, OSError)), None)


def print_line(text: str) -> None:
    """Print a line to the log."""
    print(text, file=sys.stderr, flush=True)
