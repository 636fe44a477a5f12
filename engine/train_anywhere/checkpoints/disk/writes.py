"""Writes that reach the disk, the errors of a disk, and the log line that reports one."""

import os
import sys
from pathlib import Path

from train_anywhere.errors import chain

CHUNK = 1 << 20
"""Bytes read and written at once: what stays in a core's cache costs the training no memory bandwidth."""


def write_all(descriptor: int, data: memoryview) -> None:
    """Write all of `data`: while a disk fills up, one call of write takes only a part of it."""
    while data:
        data = data[os.write(descriptor, data) :]


def sync_folder(folder: Path) -> None:
    """Make what was created and renamed in `folder` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def disk_trouble(error: BaseException | None) -> OSError | None:
    """The OSError that caused an error, if one did."""
    return next((one for one in chain(error) if isinstance(one, OSError)), None)


def say(text: str) -> None:
    """Print a line to the log."""
    print(text, file=sys.stderr, flush=True)
