"""Replacing and renaming files and folders in one step, without losing any file of the user."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from train_anywhere.files.removal import remove_file, temporary_name

LARGEST = 16 << 20
"""Largest file that is read as a whole, in bytes; what this project writes is below a tenth of that."""


def write_atomic(path: Path, content: str | bytes, flush: bool = True) -> None:
    """Replace a file in one step: a reader sees the old or the new content, never a part, also after a power cut.

    The new file has the permissions of the old one.

    Args:
        flush: wait until it is on the disk; without it a power cut may leave an empty file.

    Raises:
        OSError: the disk refuses, or the name belongs to something that is not an ordinary file; nothing has changed then.
            Its `filename` is the file, and not the temporary one.
    """
    mode, temporary = permissions(path), temporary_name(path)
    try:
        with _new(temporary) as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(content.encode() if isinstance(content, str) else content)
            if flush:
                file.flush()
                os.fsync(file.fileno())
        # what stood there was looked at above; a shared disk answers each look slowly
        temporary.replace(path)
    except BaseException as error:
        with suppress(OSError):  # the first error counts
            remove_file(temporary)
        if isinstance(error, OSError) and error.errno:
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def read_text(path: Path, largest: float = LARGEST) -> str:
    """The content of an ordinary file; reading a pipe would block. Raises OSError or UnicodeDecodeError.

    It is looked at once it is open: each call by name is one that a shared disk answers slowly, and ranks read often.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError:
        permissions(path)  # says what else it is
        raise
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise not_ordinary(path, status.st_mode)
        if status.st_size > largest:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        with open(file, encoding="utf-8-sig", closefd=False) as content:
            return content.read()
    finally:
        os.close(file)


def write_keeping(path: Path, text: str) -> None:
    """`write_atomic`; an old content that differs is kept beside the file as NAME.1, NAME.2 and so on."""
    try:
        before = read_text(path)
    except FileNotFoundError:
        before = text
    if before != text:
        write_atomic(_free(path, "."), before)
    write_atomic(path, text)


def replace(temporary: Path, path: Path) -> None:
    """Give a temporary file its final name. Raises FileExistsError if something other than an ordinary file has that name."""
    permissions(path)
    temporary.replace(path)


def take(path: Path) -> Path:
    """Rename a file to a name of this process, so that only one of several processes gets it. Raises OSError."""
    permissions(path)
    taken = temporary_name(path)
    path.rename(taken)
    return taken


def move(path: Path, name: Path) -> None:
    """Rename a file or folder. Raises FileExistsError if the new name is taken."""
    if os.path.lexists(name):
        raise FileExistsError(f"{name} already exists")
    path.rename(name)


def set_aside(path: Path, word: str) -> Path:
    """Rename a file or folder to the first free one of NAME.<word>-1, -2 and so on; returns that name."""
    kept = _free(path, f".{word}-")
    path.rename(kept)
    return kept


def link_atomic(link: Path, target: str) -> bool:
    """Make a symbolic link, or replace one in one step; False if something else has that name, which stays."""
    if os.path.lexists(link) and not link.is_symlink():
        return False
    # the random end: threads of this process may make the same link at once
    temporary = link.with_name(f"{temporary_name(link).name}-{os.urandom(2).hex()}")
    temporary.symlink_to(target)
    temporary.replace(link)
    return True


def _new(temporary: Path) -> BinaryIO:
    """A new file; an existing one was left by a killed process with the same process id."""
    try:
        return open(temporary, "xb")
    except FileExistsError:
        remove_file(temporary)
        return open(temporary, "xb")


def permissions(path: Path) -> int | None:
    """The permissions of an ordinary file; None if nothing has that name. Raises FileExistsError for anything else."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        raise not_ordinary(path, mode)
    return stat.S_IMODE(mode)


def not_ordinary(path: Path, mode: int, wanted: str = "file") -> FileExistsError:
    """Return the error that says what stands in the place of an ordinary file or folder."""
    if stat.S_ISREG(mode):
        return FileExistsError(f"{path} is not a folder")
    kind = "a folder" if stat.S_ISDIR(mode) else "a link" if stat.S_ISLNK(mode) else "a pipe or device"
    return FileExistsError(f"{path} is {kind}, not an ordinary {wanted}")


def _free(path: Path, ending: str) -> Path:
    return next(p for p in _numbered(path, ending) if not os.path.lexists(p))


def _numbered(path: Path, ending: str) -> Iterator[Path]:
    number = 0
    while True:
        number += 1
        yield path.with_name(f"{path.name}{ending}{number}")
