"""Open ordinary files and make folders, without following links, waiting for pipes or writing to devices.

Everything written below a run folder goes through this module or `files/atomic.py`: the folder may come from another user, and a
link in it could lead to a file of this user.
"""

import os
import stat
from io import FileIO
from pathlib import Path
from typing import Literal

from train_anywhere.files.atomic import not_ordinary_error, open_descriptor, write_atomic

_FLAGS = {
    "rb": os.O_RDONLY,
    "rb+": os.O_RDWR,
    "ab": os.O_WRONLY | os.O_APPEND | os.O_CREAT,
    "wb": os.O_WRONLY | os.O_CREAT,
}


def open_file(path: Path, mode: Literal["rb", "rb+", "ab", "wb"]) -> FileIO:
    """Open an ordinary file, unbuffered.

    A file with a second name (a hard link) is replaced by a copy before it is written, so the other name keeps its content.

    Raises:
        FileExistsError: the path is a link, a folder, a pipe, a socket or a device; nothing has changed then.
        OSError: the disk failed.
    """
    number, status = open_descriptor(path, _FLAGS[mode])
    try:
        if mode == "rb" or status.st_nlink < 2:
            if mode == "wb":
                os.ftruncate(number, 0)
            return FileIO(number, mode)
    except BaseException:
        os.close(number)
        raise
    os.close(number)
    _break_hard_link(path)
    return open_file(path, mode)


def overwrite(path: Path, content: bytes) -> None:
    """Replace the content of an existing file in place, which works on a full disk if the new content is not longer.

    Shorter content is first padded with newlines, so that no reader sees the end of the old content after it.

    Raises:
        OSError: the disk failed, or the file is missing or not an ordinary file.
    """
    with open_file(path, "rb+") as file:
        size = os.fstat(file.fileno()).st_size
        if len(content) > size:
            _allocate(file, len(content), size)
        _write(file, content.ljust(size, b"\n"), 0)
        file.truncate(len(content))


def _allocate(file: FileIO, needed: int, size: int) -> None:
    """Extend a file with newlines to `needed` bytes first: a full disk would write only a part of the new content."""
    try:
        _write(file, b"\n" * (needed - size), size)
        os.posix_fallocate(file.fileno(), 0, needed)
    except OSError:
        file.truncate(size)
        raise


def _write(file: FileIO, content: bytes, offset: int) -> None:
    while content:
        written = os.pwrite(file.fileno(), content, offset)
        content, offset = content[written:], offset + written


def write_or_overwrite(path: Path, content: str | bytes) -> None:
    """Write a file with `write_atomic`, or overwrite it in place if the disk has no room for a second file. Raises OSError."""
    try:
        write_atomic(path, content)
    except OSError:
        try:
            overwrite(path, content.encode() if isinstance(content, str) else content)
            return
        except OSError:  # the first error is raised
            pass
        raise


def make_folder(folder: Path) -> None:
    """Make a folder unless it exists; its parent must exist. Raises OSError, also if the path is a link or a file."""
    try:
        os.mkdir(folder)
    except FileExistsError:
        if not stat.S_ISDIR(mode := folder.lstat().st_mode):
            raise not_ordinary_error(folder, mode, "folder") from None


def _break_hard_link(path: Path) -> None:
    with open_file(path, "rb") as old:
        write_atomic(path, old.readall())
