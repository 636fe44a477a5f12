"""The one place where anything is removed: only what is provably this project's own. The rest is left, and a sentence says so.

A folder is removed where all of this holds. It is looked at through folders that are held open, so that nothing can be
exchanged between the look and the removal:

- its place is computed: a root that the caller names, and below it names made of run id, step, user id and the like. A path
  that was read from a file or from the environment proves nothing.
- nothing below that root is a symbolic link, and no other disk is mounted there.
- it holds a file `.run-marker`, which was written when the folder was made and says what it is and of which run.
- the folder, its marker and all folders in it belong to this user.

The marker is removed last: what a kill leaves half-removed still has it, and goes the next time. A kill between the two calls
that make a folder and its marker leaves an empty one, which may be removed by its name alone.
"""

import errno
import os
import re
import shutil
import socket
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

MARKER = ".run-marker"
"""File in each folder that may be removed."""

DEEPEST = 50
"""Levels of folders in a folder of ours; more is none that this project made."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class NotOurs(PermissionError):
    """Something is not provably this project's own; the message says what, and why."""


@dataclass(frozen=True)
class Place:
    """Where a folder of ours is, and how it is known.

    Attributes:
        root: above it nothing is looked at.
        names: of the folders below the root, one per level; the last one is the folder's own. All of them computed.
        marker: one line, what its marker file says; no two folders of this project have the same.
    """

    root: Path
    names: tuple[str, ...]
    marker: str

    @property
    def path(self) -> Path:
        """The folder."""
        return self.root.joinpath(*self.names)


def make(place: Place, private: bool = False) -> None:
    """Make the folder and its marker, and the folders on the way to it. One that is there already must be ours.

    Args:
        private: only this user may enter the folders below the root.

    Raises:
        NotOurs: where something else is in its place, or a link is on the way to it.
        OSError: where the disk refuses.
    """
    place.root.mkdir(parents=True, exist_ok=True)
    with _opened(place.root, place.names, private, create=True) as folder:
        found = _marker(folder)
        if found != place.marker:
            _refuse_unless_begun(folder, place, found)
            _write_marker(folder, place.marker)


def make_empty(place: Place, private: bool = False) -> None:
    """`make`, and nothing but the marker is in it: one of ours is removed first. Raises as `make`."""
    if os.path.lexists(place.path) and not remove(place):
        raise FileExistsError(f"{place.path} is in the way")
    make(place, private)


def adopt(place: Place) -> None:
    """Write the marker into a folder that has none, and whose content has shown the caller that it is ours.

    What can't be marked stays unmarked, and is not removed then.
    """
    with suppress(OSError), _opened(place.root, place.names) as folder:
        if os.fstat(folder).st_uid == os.getuid():
            _write_marker(folder, place.marker, os.O_EXCL)


def check(place: Place, private: bool = False) -> None:
    """Return where the folder is ours.

    Args:
        private: it must also be this user's alone, with all folders below the root.

    Raises:
        FileNotFoundError: there is no such folder.
        NotOurs: there is one, and it is not provably ours.
        OSError: where the disk refuses.
    """
    with _opened(place.root, place.names, private) as folder:
        _prove(folder, place)


def remove(place: Place, hidden: str = "") -> bool:
    """Remove the folder where it is ours; where it is not, say so once.

    Args:
        hidden: another name to give it first, so that a kill leaves no half of it in sight.

    Returns:
        Whether nothing is there any more.
    """
    try:
        with _opened(place.root, place.names[:-1]) as parent:
            _remove(parent, place, hidden)
    except FileNotFoundError:
        return not os.path.lexists(place.path)
    except OSError as why:
        say_once(f"{place.path} is not removed: {why if isinstance(why, NotOurs) else why.strerror or why}.")
        return False
    return True


def temporary_name(path: Path) -> Path:
    """Beside a file, the name under which this process, and no other one, writes what is to take its place."""
    return path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")


def remove_file(path: Path) -> None:
    """Remove a file that this process made, if it is there; its name says so. Raises ValueError for any other name."""
    if not (path.name.startswith(".") and str(os.getpid()) in re.split("[.-]", path.name)):
        raise ValueError(f"{path} is no temporary file of this process")
    with suppress(FileNotFoundError):
        path.unlink()


def remove_link(path: Path) -> None:
    """Remove a symbolic link, if it is one; what it leads to stays."""
    if path.is_symlink():
        path.unlink()


@cache
def say_once(text: str) -> None:
    """Tell the person who reads the log, once per process."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def _opened(root: Path, names: Sequence[str], private: bool = False, create: bool = False) -> Iterator[int]:
    """A folder below `root`, reached name by name; see the top for what is refused on the way."""
    folder, path = os.open(root, _FOLDER), root
    try:
        for name in names:
            path = path / name
            if create:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o700 if private else 0o777, dir_fd=folder)
            inner = _enter(folder, name, path)
            os.close(folder)
            folder = inner
            if private:
                _refuse_others(folder, path)
        yield folder
    finally:
        os.close(folder)


def _enter(parent: int, name: str, path: Path) -> int:
    """Open the folder `name` in an open one; `path` is for messages."""
    if name in ("", ".", "..") or "/" in name:
        raise NotOurs(f"{name!r} is not the name of a folder of this project")
    try:
        folder = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK):
            raise
        link = stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
        raise NotOurs(f"{path} is {'a symbolic link' if link else 'no folder'}") from error
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


def _prove(folder: int, place: Place) -> None:
    """Raise NotOurs unless the open folder is this user's, with its marker or nothing in it."""
    if os.fstat(folder).st_uid != os.getuid():
        raise NotOurs(f"{place.path} belongs to another user")
    found = _marker(folder)
    if found != place.marker:
        _refuse_unless_begun(folder, place, found)


def _refuse_unless_begun(folder: int, place: Place, found: str | None) -> None:
    """A kill leaves a new folder empty, or with the beginning of its marker."""
    if set(os.listdir(folder)) <= {MARKER} and place.marker.startswith(found or ""):
        return
    says = "no marker of this project" if found is None else f"the marker of another folder ({found[:80]!r})"
    raise NotOurs(f"{place.path} has {says}")


def _marker(folder: int) -> str | None:
    """What the marker says; None where it is no file of this user."""
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


def _remove(parent: int, place: Place, hidden: str) -> None:
    name = place.names[-1]
    folder = _enter(parent, name, place.path)
    try:
        _prove(folder, place)
        _survey(folder, place.path)
        if hidden:
            name = _hide(parent, name, hidden, folder)
        _empty(folder)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=parent)


def _survey(folder: int, path: Path, levels: int = DEEPEST) -> None:
    """Raise NotOurs for what this project never makes: mounted disks, folders of others; before anything is removed."""
    if not levels:
        raise NotOurs(f"{path} is deeper than any folder of this project")
    for name in _folders(folder):
        inner = _enter(folder, name, path / name)
        try:
            if os.fstat(inner).st_uid != os.getuid():
                raise NotOurs(f"{path / name} belongs to another user")
            _survey(inner, path / name, levels - 1)
        finally:
            os.close(inner)


def _hide(parent: int, name: str, hidden: str, folder: int) -> str:
    """Rename the open folder; returns the name that it has now."""
    try:
        os.rename(name, hidden, src_dir_fd=parent, dst_dir_fd=parent)
    except OSError:
        return name  # what has that name goes later
    there = os.stat(hidden, dir_fd=parent, follow_symlinks=False)
    if os.path.samestat(there, os.fstat(folder)):
        return hidden
    os.rename(hidden, name, src_dir_fd=parent, dst_dir_fd=parent)
    raise NotOurs(f"{name} was exchanged meanwhile")


def _empty(folder: int) -> None:
    """Remove what is in the open folder, its marker last and only when nothing else is left."""
    folders = _folders(folder)
    for name in os.listdir(folder):
        if name in folders:
            shutil.rmtree(name, dir_fd=folder)
        elif name != MARKER:
            os.unlink(name, dir_fd=folder)
    if os.listdir(folder) == [MARKER]:
        os.unlink(MARKER, dir_fd=folder)


def _folders(folder: int) -> set[str]:
    with os.scandir(folder) as entries:
        return {entry.name for entry in entries if entry.is_dir(follow_symlinks=False)}
