"""The only place that removes anything: only what is provably this project's own. The rest stays, and a sentence says so.

A folder is removed if all of the following holds. It is checked through open descriptors, so that nothing can be
replaced between the check and the removal:

- its path is computed: a root that the caller gives, and below it names made of run id, step, user id and the like. A path
  read from a file or from the environment proves nothing.
- nothing below that root is a symbolic link, and no other disk is mounted there.
- it contains a file `.run-marker`, written when the folder was made, which says what the folder is and for which run.
- the folder, its marker and all folders in it belong to this user.

The marker is removed last: a folder that a kill leaves half removed still has it, and is removed the next time. A kill between
making a folder and its marker leaves an empty folder, which may be removed by its name alone.
"""

import os
import re
import shutil
import socket
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

from train_anywhere.files.marked import MARKER, NotOurs, Place, enter, make, opened, prove

DEEPEST = 50
"""Levels of folders below a folder of ours; this project never makes more."""


def make_empty(place: Place, private: bool = False) -> None:
    """`make` an empty folder: an existing one is removed first, if it is ours. Raises what `make` raises."""
    if os.path.lexists(place.path) and not remove(place):
        raise FileExistsError(f"{place.path} is in the way")
    make(place, private)


def remove(place: Place, hidden: str = "") -> bool:
    """Remove the folder if it is ours; if it is not, say so once.

    Args:
        hidden: a name to rename it to first, so that a kill leaves nothing half removed under its own name.

    Returns:
        Whether it is gone.
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


def remove_in(place: Place, name: str) -> None:
    """Remove the file `name`, if it exists, from a folder that is ours.

    Raises:
        NotOurs: the folder can't be proved to be ours.
        OSError: the disk refuses, or there is no such folder.
    """
    with opened(place.root, place.names) as folder:
        prove(folder, place)
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)


def temporary_name(path: Path) -> Path:
    """The name, beside a file, under which this process alone writes its replacement."""
    return path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")


def remove_file(path: Path) -> None:
    """Remove a temporary file of this process, if it exists. Raises ValueError if its name is not one."""
    if not (path.name.startswith(".") and str(os.getpid()) in re.split("[.-]", path.name)):
        raise ValueError(f"{path} is not a temporary file of this process")
    with suppress(FileNotFoundError):
        path.unlink()


def remove_empty(folder: Path) -> None:
    """Remove an empty folder; any other one stays."""
    with suppress(OSError):
        folder.rmdir()


def remove_link(path: Path) -> None:
    """Remove a symbolic link, and nothing else; its target stays."""
    if path.is_symlink():
        path.unlink()


@cache
def say_once(text: str) -> None:
    """Print a line to the log, once per process."""
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
    """Before anything is removed, raise NotOurs for what this project never makes: mounted disks, folders of other users."""
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
    """Rename the open folder; returns its new name."""
    try:
        os.rename(name, hidden, src_dir_fd=parent, dst_dir_fd=parent)
    except OSError:
        return name  # something else has the hidden name: remove it under its own
    there = os.stat(hidden, dir_fd=parent, follow_symlinks=False)
    if os.path.samestat(there, os.fstat(folder)):
        return hidden
    os.rename(hidden, name, src_dir_fd=parent, dst_dir_fd=parent)
    raise NotOurs(f"{name} was replaced meanwhile")


def _empty(folder: int) -> None:
    """Remove the content of the open folder, the marker last and only if nothing else is left."""
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
