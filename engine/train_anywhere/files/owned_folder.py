"""Folders that this project made, recognised by a computed path without links and a marker file.

The rules are at the top of `files/removal.py`; this module does all the checks.
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


class NotOwnedError(PermissionError):
    """A folder can't be proved to be this project's own; the message names it and the reason."""


@dataclass(frozen=True)
class OwnedFolder:
    """The path and the marker of a folder that belongs to this project.

    Attributes:
        root: the folder at which the checks start; nothing above it is checked.
        names: the computed name of each folder below the root, the folder itself last.
        marker: the line in its marker file, different for each folder of this project.
    """

    root: Path
    names: tuple[str, ...]
    marker: str

    @property
    def path(self) -> Path:
        """The path of the folder."""
        return self.root.joinpath(*self.names)


def make_owned(place: OwnedFolder, private: bool = False) -> None:
    """Create the folder, its parents and its marker; an existing folder must already be ours.

    With `private`, only this user may enter the folders below the root.

    Raises:
        NotOwnedError: the path is something else, or contains a link.
        OSError: the disk failed.
    """
    place.root.mkdir(parents=True, exist_ok=True)
    with open_below(place.root, place.names, private, create=True) as folder:
        found = _read_marker(folder)
        if found != place.marker:
            _refuse_unless_new(folder, place, found)
            _write_marker(folder, place.marker)


def check_owned(place: OwnedFolder, private: bool = False) -> None:
    """Raise an error unless the folder is ours.

    With `private`, no other user may own or write to it, or to the folders between the root and it.

    Raises:
        FileNotFoundError: the folder does not exist.
        NotOwnedError: the folder exists but can't be proved to be ours.
        OSError: the disk failed.
    """
    with open_below(place.root, place.names, private) as folder:
        check_marker(folder, place)


@contextmanager
def open_below(
    root: Path, names: Sequence[str], private: bool = False, create: bool = False
) -> Iterator[int]:
    """Open a folder below `root` name by name, refusing links and other disks on the way; yield its descriptor."""
    folder, path = os.open(root, _FOLDER), root
    try:
        for name in names:
            path = path / name
            if create:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o700 if private else 0o777, dir_fd=folder)
            inner = open_subfolder(folder, name, path)
            os.close(folder)
            folder = inner
            if private:
                _refuse_others(folder, path)
        yield folder
    finally:
        os.close(folder)


def open_subfolder(parent: int, name: str, path: Path) -> int:
    """Open the folder `name` inside an open folder; `path` is for messages."""
    if name in ("", ".", "..") or "/" in name:
        raise NotOwnedError(f"{name!r} is not the name of a folder of this project")
    try:
        folder = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK):
            raise
        link = stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
        raise NotOwnedError(f"{path} is {'a symbolic link' if link else 'not a folder'}") from error
    if os.fstat(folder).st_dev != os.fstat(parent).st_dev:
        os.close(folder)
        raise NotOwnedError(f"another disk is mounted on {path}")
    return folder


def _refuse_others(folder: int, path: Path) -> None:
    status = os.fstat(folder)
    if status.st_uid != os.getuid():
        raise NotOwnedError(f"{path} belongs to another user")
    if status.st_mode & 0o022:
        raise NotOwnedError(f"others may write in {path} (chmod 700 would change that)")


def check_marker(folder: int, place: OwnedFolder) -> None:
    """Raise NotOwnedError unless the open folder belongs to this user and is empty or has its marker."""
    if os.fstat(folder).st_uid != os.getuid():
        raise NotOwnedError(f"{place.path} belongs to another user")
    found = _read_marker(folder)
    if found != place.marker:
        _refuse_unless_new(folder, place, found)


def _refuse_unless_new(folder: int, place: OwnedFolder, found: str | None) -> None:
    """Raise NotOwnedError unless a kill left the folder empty or with a partly written marker."""
    if set(os.listdir(folder)) <= {MARKER} and place.marker.startswith(found or ""):
        return
    has = "no marker of this project" if found is None else f"the marker of another folder ({found[:80]!r})"
    raise NotOwnedError(f"{place.path} has {has}")


def _read_marker(folder: int) -> str | None:
    """Return the content of the marker; None if it is missing or not a file of this user."""
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


def _write_marker(folder: int, text: str) -> None:
    how = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(MARKER, how, 0o666, dir_fd=folder)
    try:
        os.write(file, f"{text}\n".encode())
        os.fsync(file)
    finally:
        os.close(file)
