"""Whether a folder can be written to, checked before anything is written."""

import errno
import os
from pathlib import Path

ROOM = 64 * 1024
"""Bytes that must be free: a new run folder needs less; the size of its checkpoints is not known yet."""

ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP)
"""Errors of a path that is not found: the folder above it is checked instead."""


def results_problems(results: Path, name: str) -> list[str]:
    """Why no run folder can be made below `results/<name>`, or `results/latest` can't point to it."""
    try:
        words = unwritable(results / name) or _taken(results / "latest")
    except (OSError, ValueError) as error:
        words = f"{results} can't be used ({getattr(error, 'strerror', None) or error})"
    return [f"paths.results={results}: {words}; use paths.results=FOLDER."] if words else []


def unwritable(folder: Path) -> str:
    """Why a folder, which may not exist yet, can't be written to; "" if it can.

    Raises:
        OSError, ValueError: the path itself is invalid.
    """
    for place in (folder, *folder.parents):
        try:
            place.lstat()
        except OSError as error:
            if error.errno not in ABSENT:
                raise
        else:
            return _unusable(place)
    return ""


def _unusable(place: Path) -> str:
    if not place.exists():
        return f"{place} is a link to {os.readlink(place)}, which does not exist"
    if not place.is_dir():
        return f"{place} is a file, not a folder"
    if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
        return f"you can't write to {place}"
    disk = os.statvfs(place)
    if disk.f_bavail * disk.f_frsize < ROOM or (disk.f_files and not disk.f_favail):
        return f"the disk of {place} is full"
    return ""


def _taken(latest: Path) -> str:
    """Why the link to the newest run can't be made: it replaces nothing but a link."""
    if os.path.lexists(latest) and not latest.is_symlink():
        kind = "folder" if latest.is_dir() else "file"
        return f"{latest} is a {kind} where the link to the newest run belongs, rename it"
    return ""
