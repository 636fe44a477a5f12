"""Files and folders that are replaced or renamed: in one step, and nothing of the user's is lost by it."""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from src.files.removal import remove_file, temporary_name

LARGEST = 16 << 20
"""Bytes of a file that is read as a whole; none that this project writes is a tenth of that."""


def write_atomic(path: Path, content: str | bytes) -> None:
    """Replace a file in one step: a reader sees the old or the new text, never a part; it survives a power cut.

    The new file has the permissions of the old one.

    Raises:
        OSError: where the disk does not take it, or what has that name is no ordinary file; nothing has changed then.
    """
    mode, temporary = _permissions(path), temporary_name(path)
    try:
        with _new(temporary) as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        replace(temporary, path)
    except BaseException:
        remove_file(temporary)
        raise


def read_text(path: Path) -> str:
    """What an ordinary file of a run says; a pipe would be waited for. Raises OSError, or UnicodeDecodeError."""
    _permissions(path)
    if path.stat().st_size > LARGEST:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return path.read_text(encoding="utf-8")


def write_keeping(path: Path, text: str) -> None:
    """`write_atomic`; where another text is replaced, that is kept beside it as NAME.1, NAME.2 and so on."""
    try:
        before = read_text(path)
    except FileNotFoundError:
        before = text
    if before != text:
        write_atomic(_free(path, "."), before)
    write_atomic(path, text)


def replace(temporary: Path, path: Path) -> None:
    """Give a file of this process its final name. Raises FileExistsError where that is no ordinary file's."""
    _permissions(path)
    temporary.replace(path)


def take(path: Path) -> Path:
    """Rename a file to a name that only this process uses, so that one of several has it. Raises OSError."""
    _permissions(path)
    taken = temporary_name(path)
    path.rename(taken)
    return taken


def move(path: Path, name: Path) -> None:
    """Rename a file or folder. Raises FileExistsError where something has that name."""
    if os.path.lexists(name):
        raise FileExistsError(f"{name} already exists")
    path.rename(name)


def set_aside(path: Path, word: str) -> Path:
    """Rename whatever it is to NAME.<word>-1, or -2 and so on; returns that name, which nothing had before."""
    kept = _free(path, f".{word}-")
    path.rename(kept)
    return kept


def link_atomic(link: Path, target: str) -> bool:
    """Make a symbolic link, in one step where there is one; False where the name is of something else, which stays."""
    if os.path.lexists(link) and not link.is_symlink():
        return False
    # the random end: threads of this process may make the same link at once
    temporary = link.with_name(f"{temporary_name(link).name}-{os.urandom(2).hex()}")
    temporary.symlink_to(target)
    temporary.replace(link)
    return True


def _new(temporary: Path) -> BinaryIO:
    """A new file; one that is there was left by a killed process that had this one's number."""
    try:
        return open(temporary, "xb")
    except FileExistsError:
        remove_file(temporary)
        return open(temporary, "xb")


def _permissions(path: Path) -> int | None:
    """Of an ordinary file; None where nothing has that name."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a link" if stat.S_ISLNK(mode) else "a pipe or device"
        raise FileExistsError(f"{path} is {kind}, not an ordinary file")
    return stat.S_IMODE(mode)


def _free(path: Path, ending: str) -> Path:
    return next(p for p in _numbered(path, ending) if not os.path.lexists(p))


def _numbered(path: Path, ending: str) -> Iterator[Path]:
    number = 0
    while True:
        number += 1
        yield path.with_name(f"{path.name}{ending}{number}")
