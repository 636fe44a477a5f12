"""Folders of this project, marked by a file, and the only module that removes anything.

It removes only what is provably this project's own, and logs what it leaves. A folder is removed only if all of the following is true. The
checks use open descriptors, so that nothing can be replaced between the check and the removal:

- Its path is computed: a root from the caller, and below it names built from run id, step, user id and the like. A path
  read from a file or from the environment proves nothing.
- Nothing below that root is a symbolic link, and no other disk is mounted there.
- It contains a file `.run-marker`, written when the folder was made, with the purpose of the folder and its run.
- The folder, its marker and all folders in it belong to this user.

The marker is removed last: a folder that a kill leaves half removed still has it, and is removed the next time. A kill between
making a folder and its marker leaves an empty folder, which may be removed because of its name.
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
"""The file in each folder that may be removed."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class NotOwnedError(PermissionError):
    """A folder can't be proved to be this project's own. The message gives the reason."""


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
    """Create the folder, its parents and its marker. An existing one must be ours.

    With `private`, only this user may enter the folders below the root. Raises NotOwnedError: the path is something else, or contains a
    link. Raises OSError: the disk failed.
    """
    place.root.mkdir(parents=True, exist_ok=True)
    with open_below(place.root, place.names, private, create=True) as folder:
        if not _is_marked(folder, place):
            # not truncated: another process may write the same line now
            how = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(MARKER, how, 0o666, dir_fd=folder), "wb") as file:
                file.write(f"{place.marker}\n".encode())
                file.flush()
                os.fsync(file.fileno())


def check_owned(place: OwnedFolder, private: bool = False) -> None:
    """Raise FileNotFoundError, NotOwnedError or another OSError unless the folder exists and is ours.

    With `private`, no other user may own or write to it, or to the folders between the root and it.
    """
    with open_below(place.root, place.names, private) as folder:
        _is_marked(folder, place)


@contextmanager
def open_below(
    root: Path, names: Sequence[str], private: bool = False, create: bool = False
) -> Iterator[int]:
    """Open a folder below `root`, refusing links and other disks, and yield its descriptor."""
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
            status = os.fstat(folder)
            if private and status.st_uid != os.getuid():
                raise NotOwnedError(f"{path} belongs to another user")
            if private and status.st_mode & 0o022:
                raise NotOwnedError(f"others may write in {path} (chmod 700 would change that)")
        yield folder
    finally:
        os.close(folder)


def open_subfolder(parent: int, name: str, path: Path) -> int:
    """Open the folder `name` inside an open folder. `path` is for messages."""
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


def _is_marked(folder: int, place: OwnedFolder) -> bool:
    """Return whether the open folder has its marker. Both must be this user's.

    Raises NotOwnedError if they are not, unless a kill left the folder empty or with a partly written marker.
    """
    if os.fstat(folder).st_uid != os.getuid():
        raise NotOwnedError(f"{place.path} belongs to another user")
    found, names = None, {*os.listdir(folder)}  # first: another process adds files after the marker
    with suppress(OSError):
        number = os.open(MARKER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        with open(number, "rb") as file:
            status = os.fstat(number)
            if stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid():
                found = file.read(1000).decode(errors="replace").removesuffix("\n")
    if found == place.marker or (names <= {MARKER} and place.marker.startswith(found or "")):
        return found == place.marker
    has = "no marker of this project" if found is None else f"the marker of another folder ({found[:80]!r})"
    raise NotOwnedError(f"{place.path} has {has}")


def make_empty(place: OwnedFolder, private: bool = False) -> None:
    """Create an empty folder like `make_owned`, in the place of an existing one of ours."""
    if os.path.lexists(place.path) and not remove(place):
        raise FileExistsError(f"{place.path} exists and can't be removed")
    make_owned(place, private)


@contextmanager
def new_folder(place: OwnedFolder, private: bool = False) -> Iterator[Path]:
    """Yield the path of an empty folder like `make_empty`, to fill and rename it. Remove it after an error."""
    make_empty(place, private)
    try:
        yield place.path
    except BaseException:
        remove(place)
        raise


def remove(place: OwnedFolder, hidden: str = "") -> bool:
    """Remove the folder if it is ours, else log the reason. Return whether it is gone.

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
        print_once(f"{place.path} is not removed: {why.strerror or why}.")
        return False
    return True


def hidden_name(name: str) -> str:
    """Return the name of a folder while it is removed."""
    return f".{name}.removed"


def remove_in(place: OwnedFolder, name: str) -> None:
    """Remove the file `name`, if it exists, from a folder. Raises NotOwnedError or another OSError unless that exists and is ours."""
    with open_below(place.root, place.names) as folder:
        _is_marked(folder, place)
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)


def temporary_name(path: Path) -> Path:
    """Return a name next to a file, unique to this process, for its replacement."""
    return path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")


def is_temporary(name: str) -> bool:
    """Return whether `temporary_name` makes such a name on this machine, in any process."""
    return bool(re.fullmatch(rf"\..+\.{re.escape(socket.gethostname())}\.\d+(-[0-9a-f]+)?", name, re.DOTALL))


def remove_file(path: Path) -> None:
    """Remove a temporary file of this process, if it exists. Raises ValueError for others."""
    if not (path.name.startswith(".") and str(os.getpid()) in re.split("[.-]", path.name)):
        raise ValueError(f"{path} is not a temporary file of this process")
    with suppress(FileNotFoundError):
        path.unlink()


def remove_empty(folder: Path) -> None:
    """Remove an empty folder. Any other one stays."""
    with suppress(OSError):
        folder.rmdir()


def remove_link(path: Path) -> None:
    """Remove a symbolic link but not its target. Anything else stays."""
    if path.is_symlink():
        path.unlink()


@cache
def print_once(text: str) -> None:
    """Print a line to the log, once per process."""
    print(text, file=sys.stderr, flush=True)


def _remove(parent: int, place: OwnedFolder, name: str, hidden: str) -> None:
    folder = open_subfolder(parent, name, place.path)
    try:
        _is_marked(folder, place)
        _check_content(folder, place.path)
        if hidden != name:
            name = _hide(parent, name, hidden, folder)
        with os.scandir(folder) as entries:
            found = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
        for inner, is_folder in found.items():
            if is_folder:
                shutil.rmtree(inner, dir_fd=folder)
            elif inner != MARKER:
                os.unlink(inner, dir_fd=folder)
        if os.listdir(folder) == [MARKER]:  # last, so that a folder half removed still has it
            os.unlink(MARKER, dir_fd=folder)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=parent)


def _hide(parent: int, name: str, hidden: str, folder: int) -> str:
    """Rename the open folder, and return its new name."""
    try:
        os.rename(name, hidden, src_dir_fd=parent, dst_dir_fd=parent)
    except OSError:
        return name  # the hidden name is in use: remove the folder under its own name
    status = os.stat(hidden, dir_fd=parent, follow_symlinks=False)
    if os.path.samestat(status, os.fstat(folder)):
        return hidden
    os.rename(hidden, name, src_dir_fd=parent, dst_dir_fd=parent)
    raise NotOwnedError(f"{name} was replaced by another process meanwhile")


def _check_content(folder: int, path: Path) -> None:
    """Raise NotOwnedError for what this project never makes, such as mounted disks."""

    def refuse(error: OSError) -> None:
        raise error

    own = os.fstat(folder)
    for top, _, _, inner in os.fwalk(".", onerror=refuse, dir_fd=folder):
        status = os.fstat(inner)
        if top.count("/") >= 50:  # this project never makes more levels
            raise NotOwnedError(f"{path} is deeper than any folder of this project")
        if status.st_dev != own.st_dev:
            raise NotOwnedError(f"another disk is mounted on {path / top}")
        if status.st_uid != own.st_uid:
            raise NotOwnedError(f"{path / top} belongs to another user")
