"""Folders that this project made, and how it recognises them: a computed place, no link on the way, and a marker.

The rules are at the top of `files/removal.py`; all checks of such a folder are made here.
"""

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

MARKER = ".run-marker"
"""The file in each folder that may be removed."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class NotOurs(PermissionError):
    """Something can't be proved to be this project's own; the message says what, and why."""


@dataclass(frozen=True)
class Place:
    """Where a folder of this project is, and how it is recognised.

    Attributes:
        root: nothing above it is checked.
        names: of the folders below the root, one per level, the folder's own last; all are computed.
        marker: the line in its marker file; no two folders of this project have the same.
    """

    root: Path
    names: tuple[str, ...]
    marker: str

    @property
    def path(self) -> Path:
        """The folder."""
        return self.root.joinpath(*self.names)


def make(place: Place, private: bool = False) -> None:
    """Make the folder, its parents and its marker. A folder that already exists must be ours.

    Args:
        private: only this user may enter the folders below the root.

    Raises:
        NotOurs: something else is in its place, or there is a link on the way to it.
        OSError: the disk refuses.
    """
    place.root.mkdir(parents=True, exist_ok=True)
    with opened(place.root, place.names, private, create=True) as folder:
        found = _marker(folder)
        if found != place.marker:
            _refuse_unless_begun(folder, place, found)
            _write_marker(folder, place.marker)


def adopt(place: Place) -> None:
    """Write the marker into a folder that has none; the caller knows by its content that it is ours.

    A folder that can't be marked stays unmarked, and is never removed.
    """
    with suppress(OSError), opened(place.root, place.names) as folder:
        if os.fstat(folder).st_uid == os.getuid():
            _write_marker(folder, place.marker, os.O_EXCL)


def check(place: Place, private: bool = False) -> None:
    """Raise unless the folder is ours.

    Args:
        private: no other user may own or write to it, or to the folders between the root and it.

    Raises:
        FileNotFoundError: the folder does not exist.
        NotOurs: it exists, and can't be proved to be ours.
        OSError: the disk refuses.
    """
    with opened(place.root, place.names, private) as folder:
        prove(folder, place)


@contextmanager
def opened(root: Path, names: Sequence[str], private: bool = False, create: bool = False) -> Iterator[int]:
    """An open folder below `root`, reached name by name; links and other disks on the way are refused."""
    folder, path = os.open(root, _FOLDER), root
    try:
        for name in names:
            path = path / name
            if create:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o700 if private else 0o777, dir_fd=folder)
            inner = enter(folder, name, path)
            os.close(folder)
            folder = inner
            if private:
                _refuse_others(folder, path)
        yield folder
    finally:
        os.close(folder)


def enter(parent: int, name: str, path: Path) -> int:
    """Open the folder `name` in an open one; `path` is for messages."""
    if name in ("", ".", "..") or "/" in name:
        raise NotOurs(f"{name!r} is not the name of a folder of this project")
    try:
        folder = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK):
            raise
        link = stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
        raise NotOurs(f"{path} is {'a symbolic link' if link else 'not a folder'}") from error
    if os.fstat(folder).st_dev != os.fstat(parent).st_dev:
        os.close(folder)
        raise NotOurs(f"another disk is mounted on {path}")
    return folder


def _refuse_others(folder: int, path: Path) -> None:
    status = os.fstat(folder)
    if status.st_uid != os.getuid():
        raise NotOurs(f"{path} belongs to another user")
    if status.st_mode & 0o022:
        raise NotOurs(f"others may write in {path} (chmod 700 would change that)")


def prove(folder: int, place: Place) -> None:
    """Raise NotOurs unless the open folder belongs to this user, and is empty or has its marker."""
    if os.fstat(folder).st_uid != os.getuid():
        raise NotOurs(f"{place.path} belongs to another user")
    found = _marker(folder)
    if found != place.marker:
        _refuse_unless_begun(folder, place, found)


def _refuse_unless_begun(folder: int, place: Place, found: str | None) -> None:
    """Accept what a kill leaves of a new folder: nothing in it, or the beginning of its marker."""
    if set(os.listdir(folder)) <= {MARKER} and place.marker.startswith(found or ""):
        return
    says = "no marker of this project" if found is None else f"the marker of another folder ({found[:80]!r})"
    raise NotOurs(f"{place.path} has {says}")


def _marker(folder: int) -> str | None:
    """The content of the marker; None if it is missing or not a file of this user."""
    try:
        file = os.open(MARKER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return None
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
            return None
        return os.read(file, 1000).decode(errors="replace").removesuffix("\n")
    finally:
        os.close(file)


def _write_marker(folder: int, text: str, new: int = 0) -> None:
    how = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(MARKER, how | new, 0o666, dir_fd=folder)
    try:
        os.write(file, f"{text}\n".encode())
        os.fsync(file)
    finally:
        os.close(file)
