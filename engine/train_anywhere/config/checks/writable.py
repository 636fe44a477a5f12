"""Check that a folder can be written to, before anything is written."""

import errno
import os
from pathlib import Path

MIN_FREE = 64 * 1024
"""Bytes that must be free. A new run folder needs less; the size of its checkpoints is not known yet."""

NOT_FOUND = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP)
"""Errors for a path that is not found; the folder above it is checked instead."""


def results_problems(results: Path, name: str) -> list[str]:
    """Return why no run folder can be made below `results/<name>`, or why `results/latest` can't link to it."""
    try:
        words = write_problem(results / name) or _link_problem(results / "latest")
    except (OSError, ValueError) as error:
        words = f"{results} can't be used ({getattr(error, 'strerror', None) or error})"
    return [f"paths.results={results}: {words}; use paths.results=FOLDER."] if words else []


def write_problem(folder: Path) -> str:
    """Return why a folder, which may not exist yet, can't be written to; "" if it can.

    Raises:
        OSError, ValueError: the path itself is invalid.
    """
    for place in (folder, *folder.parents):
        try:
            place.lstat()
        except OSError as error:
            if error.errno not in NOT_FOUND:
                raise
        else:
            return _access_problem(place)
    return ""


def _access_problem(place: Path) -> str:
    if not place.exists():
        return f"{place} is a link to {os.readlink(place)}, which does not exist"
    if not place.is_dir():
        return f"{place} is a file, not a folder"
    if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
        return f"you can't write to {place}"
    disk = os.statvfs(place)
    if disk.f_bavail * disk.f_frsize < MIN_FREE or (disk.f_files and not disk.f_favail):
        return f"the disk of {place} is full"
    return ""


def _link_problem(latest: Path) -> str:
    """Return why the link to the newest run can't be made: it must not replace a file or folder."""
    if os.path.lexists(latest) and not latest.is_symlink():
        kind = "folder" if latest.is_dir() else "file"
        return f"{latest} is a {kind} where the link to the newest run belongs, rename it"
    return ""
