"""Opening ordinary files and making folders: a link is not followed, a pipe is not waited for, a device is not written to.

Everything that is written below a run folder goes through here or through `files/atomic.py`: the folder may come from
someone else, and a link in it would lead to a file of the user.
"""

import os
import stat
from io import FileIO
from pathlib import Path
from typing import Literal

from train_anywhere.files.atomic import not_ordinary, permissions, write_atomic

_HOW = {
    "rb": os.O_RDONLY,
    "rb+": os.O_RDWR,
    "ab": os.O_WRONLY | os.O_APPEND | os.O_CREAT,
    "wb": os.O_WRONLY | os.O_CREAT,
}


def open_file(path: Path, mode: Literal["rb", "rb+", "ab", "wb"]) -> FileIO:
    """Open an ordinary file, unbuffered.

    A file that has a second name (a hard link) gets a copy of its own before it is written: the other name keeps its content.

    Raises:
        FileExistsError: it is a link, a folder, a pipe, a socket or a device; nothing has changed then.
        OSError: the disk refuses.
    """
    try:
        number = os.open(path, _HOW[mode] | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o666)
    except FileNotFoundError:
        raise
    except OSError:
        permissions(path)  # raises what says what else it is
        raise
    try:
        status = os.fstat(number)
        if not stat.S_ISREG(status.st_mode):
            raise not_ordinary(path, status.st_mode)
        if mode == "rb" or status.st_nlink < 2:
            if mode == "wb":
                os.ftruncate(number, 0)
            return FileIO(number, mode)
    except BaseException:
        os.close(number)
        raise
    os.close(number)
    _copy_of_its_own(path)
    return open_file(path, mode)


def overwrite(path: Path, content: bytes) -> None:
    """Replace the content of an existing file in place: a full disk takes it too, in the room that the file has.

    The text is written at once, padded with line ends, so that no reader sees the end of the old one after the new one.

    Raises:
        OSError: the disk refuses, or there is no such ordinary file.
    """
    with open_file(path, "rb+") as file:
        size = os.fstat(file.fileno()).st_size
        if len(content) > size:
            _allocate(file, len(content), size)
        _write(file, content.ljust(size, b"\n"), 0)
        file.truncate(len(content))


def _allocate(file: FileIO, wanted: int, size: int) -> None:
    """Get the room first: of a write that does not fit a disk takes a part. Line ends at the end change no content."""
    try:
        _write(file, b"\n" * (wanted - size), size)
        os.posix_fallocate(file.fileno(), 0, wanted)
    except OSError:
        file.truncate(size)
        raise


def _write(file: FileIO, content: bytes, place: int) -> None:
    while content:
        written = os.pwrite(file.fileno(), content, place)
        content, place = content[written:], place + written


def write_or_overwrite(path: Path, content: str) -> None:
    """`write_atomic`; if the disk has no room for a second file, the old one is overwritten in place. Raises OSError."""
    try:
        write_atomic(path, content)
    except OSError:
        try:
            overwrite(path, content.encode())
            return
        except OSError:  # the first error is raised
            pass
        raise


def make_folder(folder: Path) -> None:
    """Make a folder unless it exists; its parent must. Raises OSError: also for a link or a file in its place."""
    try:
        os.mkdir(folder)
    except FileExistsError:
        if not stat.S_ISDIR(mode := folder.lstat().st_mode):
            raise not_ordinary(folder, mode, "folder") from None


def _copy_of_its_own(path: Path) -> None:
    with open_file(path, "rb") as old:
        write_atomic(path, old.readall())
