"""The only module that removes anything. It removes only what is provably this project's own, and logs what it leaves.

A folder is removed only if all of the following is true. The checks use open descriptors, so that nothing can be replaced between
the check and the removal:

- Its path is computed: a root from the caller, and below it names built from run id, step, user id and the like. A path
  read from a file or from the environment proves nothing.
- Nothing below that root is a symbolic link, and no other disk is mounted there.
- It contains a file `.run-marker`, written when the folder was made, with the purpose of the folder and its run.
- The folder, its marker and all folders in it belong to this user.

The marker is removed last: a folder that a kill leaves half removed still has it, and is removed the next time. A kill between
making a folder and its marker leaves an empty folder, which may be removed because of its name.
"""

import os
import re
import shutil
import socket
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

from train_anywhere.files.owned_folder import (
    MARKER,
    NotOwnedError,
    OwnedFolder,
    check_marker,
    make_owned,
    open_below,
    open_subfolder,
)

MAX_DEPTH = 50
"""Levels of folders below a folder of ours; this project never makes more."""


def make_empty(place: OwnedFolder, private: bool = False) -> None:
    """Create an empty folder like `make_owned`; an existing one is removed first if it is ours. Raises what `make_owned` raises."""
    if os.path.lexists(place.path) and not remove(place):
        raise FileExistsError(f"{place.path} exists and can't be removed")
    make_owned(place, private)


def remove(place: OwnedFolder, hidden: str = "") -> bool:
    """Remove the folder if it is ours, else log the reason once; return whether it is gone.

    It is first renamed to `hidden`, by default `.NAME.removed`, so that a kill leaves nothing half removed under its own name. What a
    kill has left there is removed too.
    """
    name = place.names[-1]
    hidden = hidden or (name if name.startswith(".") else hidden_name(name))
    try:
        with open_below(place.root, place.names[:-1]) as parent:
            if hidden != name:
                with suppress(OSError):
                    _remove(parent, place, hidden, hidden)
            _remove(parent, place, name, hidden)
    except FileNotFoundError:
        return not os.path.lexists(place.path)
    except OSError as why:
        print_once(
            f"{place.path} is not removed: {why if isinstance(why, NotOwnedError) else why.strerror or why}."
        )
        return False
    return True


def hidden_name(name: str) -> str:
    """Return the name of a folder while it is removed."""
    return f".{name}.removed"


def remove_in(place: OwnedFolder, name: str) -> None:
    """Remove the file `name`, if it exists, from a folder that is ours.

    Raises:
        NotOwnedError: the folder can't be proved to be ours.
        OSError: the disk failed, or the folder does not exist.
    """
    with open_below(place.root, place.names) as folder:
        check_marker(folder, place)
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)


def temporary_name(path: Path) -> Path:
    """Return a name next to a file, unique to this process, under which to write its replacement."""
    return path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")


def is_temporary(name: str) -> bool:
    """Return whether `temporary_name` makes such a name on this machine, in this process or another one."""
    return bool(re.fullmatch(rf"\..+\.{re.escape(socket.gethostname())}\.\d+(-[0-9a-f]+)?", name, re.DOTALL))


def remove_file(path: Path) -> None:
    """Remove a temporary file of this process, if it exists. Raises ValueError unless its name has this process's number."""
    if not (path.name.startswith(".") and str(os.getpid()) in re.split("[.-]", path.name)):
        raise ValueError(f"{path} is not a temporary file of this process")
    with suppress(FileNotFoundError):
        path.unlink()


def remove_empty(folder: Path) -> None:
    """Remove an empty folder; any other one stays."""
    with suppress(OSError):
        folder.rmdir()


def remove_link(path: Path) -> None:
    """Remove a symbolic link but not its target; do nothing if the path is anything else."""
    if path.is_symlink():
        path.unlink()


@cache
def print_once(text: str) -> None:
    """Print a line to the log, once per process."""
    print(text, file=sys.stderr, flush=True)


def _remove(parent: int, place: OwnedFolder, name: str, hidden: str) -> None:
    folder = open_subfolder(parent, name, place.path)
    try:
        check_marker(folder, place)
        _check_content(folder, place.path)
        if hidden != name:
            name = _hide(parent, name, hidden, folder)
        _empty(folder)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=parent)


def _check_content(folder: int, path: Path, levels: int = MAX_DEPTH) -> None:
    """Raise NotOwnedError if a folder contains what this project never makes: mounted disks, folders of other users."""
    if not levels:
        raise NotOwnedError(f"{path} is deeper than any folder of this project")
    for name in _folders(folder):
        inner = open_subfolder(folder, name, path / name)
        try:
            if os.fstat(inner).st_uid != os.getuid():
                raise NotOwnedError(f"{path / name} belongs to another user")
            _check_content(inner, path / name, levels - 1)
        finally:
            os.close(inner)


def _hide(parent: int, name: str, hidden: str, folder: int) -> str:
    """Rename the open folder; return its new name."""
    try:
        os.rename(name, hidden, src_dir_fd=parent, dst_dir_fd=parent)
    except OSError:
        return name  # the hidden name is in use: remove the folder under its own name
    status = os.stat(hidden, dir_fd=parent, follow_symlinks=False)
    if os.path.samestat(status, os.fstat(folder)):
        return hidden
    os.rename(hidden, name, src_dir_fd=parent, dst_dir_fd=parent)
    raise NotOwnedError(f"{name} was replaced by another process meanwhile")


def _empty(folder: int) -> None:
    """Remove the content of the open folder; the marker last, and only if nothing else is left."""
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
