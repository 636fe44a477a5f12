"""Replace and rename files and folders in one step, without losing any file of the user; the time of a disk."""

import errno
import os
import stat
import time
from contextlib import suppress
from functools import lru_cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO

from train_anywhere.files.removal import remove_file, temporary_name

LARGEST = 16 << 20
"""Largest file that `read_text` accepts, in bytes; files written by this project are ten times smaller."""


def write_atomic(path: Path, content: str | bytes, flush: bool = True) -> None:
    """Replace a file in one step: a reader sees the old or the new content, never a part, even after a power cut.

    The new file has the permissions of the old one. Without `flush`, a power cut may leave an empty file.

    Raises:
        OSError: the disk failed, or `path` exists and is not an ordinary file; nothing has changed then.
            The error's `filename` is `path`, not the temporary file.
    """
    mode, temporary = permissions(path), temporary_name(path)
    try:
        with _create(temporary) as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(content.encode() if isinstance(content, str) else content)
            if flush:
                file.flush()
                os.fsync(file.fileno())
        # not `replace(temporary, path)`: `path` was checked above, and each check is slow on a shared disk
        temporary.replace(path)
    except BaseException as error:
        with suppress(OSError):  # report the first error
            remove_file(temporary)
        if isinstance(error, OSError) and error.errno:
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def read_text(path: Path, largest: float = LARGEST) -> str:
    """Return the content of an ordinary file of at most `largest` bytes; reading a pipe would block.

    The checks use the open file: calls by name are slow on a shared disk, and ranks read often.

    Raises:
        OSError: the file is missing, too large, not an ordinary file, or can't be read.
        UnicodeDecodeError: the file is not UTF-8.
    """
    file, status = open_descriptor(path, os.O_RDONLY)
    with open(file, encoding="utf-8-sig") as content:
        if status.st_size > largest:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        return content.read()


def open_descriptor(path: Path, flags: int) -> tuple[int, os.stat_result]:
    """Open an ordinary file, and return its descriptor and status.

    Raises:
        FileExistsError: the path is a link, a folder, a pipe, a socket or a device.
        OSError: the disk failed.
    """
    try:
        number = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o666)
    except FileNotFoundError:
        raise
    except OSError:
        permissions(path)  # raises a clearer error if it is not an ordinary file
        raise
    try:
        status = os.fstat(number)
        if not stat.S_ISREG(status.st_mode):
            raise not_ordinary_error(path, status.st_mode)
        return number, status
    except BaseException:
        os.close(number)
        raise


def write_with_backup(path: Path, text: str) -> None:
    """Write a file with `write_atomic`; save old content that differs next to it as NAME.1, NAME.2 and so on."""
    try:
        before = read_text(path)
    except FileNotFoundError:
        before = text
    if before != text:
        write_atomic(_free_name(path, "."), before)
    write_atomic(path, text)


def replace(temporary: Path, path: Path) -> None:
    """Give a temporary file its final name. Raises FileExistsError if that name exists and is not an ordinary file."""
    permissions(path)
    temporary.replace(path)


def claim(path: Path) -> Path:
    """Rename a file to this process's temporary name, so that only one of several processes gets it. Raises OSError."""
    permissions(path)
    claimed = temporary_name(path)
    path.rename(claimed)
    return claimed


def move(path: Path, name: Path) -> None:
    """Rename a file or folder. Raises FileExistsError if the new name exists."""
    if os.path.lexists(name):
        raise FileExistsError(f"{name} already exists")
    path.rename(name)


def set_aside(path: Path, word: str) -> Path:
    """Rename a file or folder to the first free name of NAME.<word>-1, -2 and so on; return that name."""
    aside = _free_name(path, f".{word}-")
    path.rename(aside)
    return aside


def link_atomic(link: Path, target: str) -> bool:
    """Create or replace a symbolic link in one step; return False and change nothing if `link` is something else."""
    if os.path.lexists(link) and not link.is_symlink():
        return False
    # random suffix: several threads of this process may create the same link at once
    temporary = link.with_name(f"{temporary_name(link).name}-{os.urandom(2).hex()}")
    temporary.symlink_to(target)
    temporary.replace(link)
    return True


def _create(temporary: Path) -> BinaryIO:
    """Create a file; an existing one was left by a killed process with the same process id."""
    try:
        return open(temporary, "xb")
    except FileExistsError:
        remove_file(temporary)
        return open(temporary, "xb")


def permissions(path: Path) -> int | None:
    """Return the permissions of an ordinary file, None if it does not exist. Raises FileExistsError for anything else."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        raise not_ordinary_error(path, mode)
    return stat.S_IMODE(mode)


def not_ordinary_error(path: Path, mode: int, wanted: str = "file") -> FileExistsError:
    """Return the error for something that is not an ordinary file or folder; `mode` is its `st_mode`."""
    if stat.S_ISREG(mode):
        return FileExistsError(f"{path} is not a folder")
    kind = "a folder" if stat.S_ISDIR(mode) else "a link" if stat.S_ISLNK(mode) else "a pipe or device"
    return FileExistsError(f"{path} is {kind}, not an ordinary {wanted}")


def _free_name(path: Path, ending: str) -> Path:
    names = (path.with_name(f"{path.name}{ending}{number}") for number in count(1))
    return next(name for name in names if not os.path.lexists(name))


def disk_time(folder: Path) -> float:
    """Return the modification time, in unix seconds, that a file written into `folder` now would get.

    If no file can be written there, return the time of this machine.
    """
    try:
        return time.time() + _clock_offset(folder, int(time.monotonic() // 60))
    except OSError:
        return time.time()


@lru_cache(maxsize=1024)
def _clock_offset(folder: Path, minute: int) -> float:
    """Return the seconds by which the disk's clock is ahead of this machine's, measured once a minute. Raises OSError."""
    with TemporaryFile(dir=folder) as file:
        offset = os.fstat(file.fileno()).st_mtime - time.time()
    return offset if abs(offset) > 1 else 0.0  # time stamps of files are coarse
