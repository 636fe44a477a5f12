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

import os
import re
import shutil
import socket
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

from src.files.marked import MARKER, NotOurs, Place, enter, make, opened, prove

DEEPEST = 50
"""Levels of folders in a folder of ours; more is none that this project made."""


def make_empty(place: Place, private: bool = False) -> None:
    """`make`, and nothing but the marker is in it: one of ours is removed first. Raises as `make`."""
    if os.path.lexists(place.path) and not remove(place):
        raise FileExistsError(f"{place.path} is in the way")
    make(place, private)


def remove(place: Place, hidden: str = "") -> bool:
    """Remove the folder where it is ours; where it is not, say so once.

    Args:
        hidden: another name to give it first, so that a kill leaves no half of it in sight.

    Returns:
        Whether nothing is there any more.
    """
    try:
        with opened(place.root, place.names[:-1]) as parent:
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
        raise ValueError(f"{path} is not a temporary file of this process")
    with suppress(FileNotFoundError):
        path.unlink()


def remove_empty(folder: Path) -> None:
    """Remove a folder in which nothing is; any other one stays."""
    with suppress(OSError):
        folder.rmdir()


def remove_link(path: Path) -> None:
    """Remove a symbolic link, if it is one; what it leads to stays."""
    if path.is_symlink():
        path.unlink()


@cache
def say_once(text: str) -> None:
    """Tell the person who reads the log, once per process."""
    print(text, file=sys.stderr, flush=True)


def _remove(parent: int, place: Place, hidden: str) -> None:
    name = place.names[-1]
    folder = enter(parent, name, place.path)
    try:
        prove(folder, place)
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
        inner = enter(folder, name, path / name)
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
    raise NotOurs(f"{name} was replaced meanwhile")


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
