"""Open ordinary files without following links, and replace them in one step. JSON.

Everything written below a run folder goes through this module: the folder may come from another user, and a link in it could lead to a
file of this user. JSON has no nan and inf: they are written as null and refused when read.
"""

import errno
import json
import math
import os
import stat
from contextlib import suppress
from io import FileIO
from itertools import count
from pathlib import Path
from typing import Any, Literal

from train_anywhere.files.removal import remove_file, temporary_name

LARGEST = 16 << 20
"""Largest file that `read_text` accepts, in bytes; files written by this project are ten times smaller."""


def write_atomic(path: Path, content: str | bytes, flush: bool = True) -> None:
    """Replace a file in one step, so that a reader sees the old or the new content, even after a power cut.

    The new file has the permissions of the old one. Without `flush`, a power cut may leave an empty file.

    Raises:
        OSError: the disk failed, or `path` exists and is not an ordinary file; nothing has changed then.
            The error's `filename` is `path`, not the temporary file.
    """
    mode, temporary = permissions(path), temporary_name(path)
    try:
        try:
            file = open(temporary, "xb")  # noqa: SIM115
        except FileExistsError:  # left by a killed process with the same process id
            remove_file(temporary)
            file = open(temporary, "xb")  # noqa: SIM115
        with file:
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
    """Return the content of an ordinary file of at most `largest` bytes: reading a pipe would block.

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


def write_with_folder(path: Path, content: str | bytes, flush: bool = True) -> None:
    """Call `write_atomic`, and make the folder of the file if it is missing. Raises OSError."""
    try:
        write_atomic(path, content, flush)
    except FileNotFoundError:
        # made only now: nearly always it exists, and each check costs time on a shared disk
        make_folder(path.parent)
        write_atomic(path, content, flush)


def try_read(path: Path, largest: float = LARGEST) -> str:
    """Return the content of an ordinary file, or "" if it can't be read."""
    with suppress(OSError, ValueError):
        return read_text(path, largest)
    return ""


def open_descriptor(path: Path, flags: int) -> tuple[int, os.stat_result]:
    """Open an ordinary file, and return its descriptor and status.

    Raises FileExistsError: the path is a link, a folder, a pipe, a socket or a device. Raises OSError: the disk failed.
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
    """Write a file, and save old content that differs as NAME.1, NAME.2 and so on."""
    try:
        before = read_text(path)
    except FileNotFoundError:
        before = text
    if before != text:
        write_atomic(_free_name(path, "."), before)
    write_atomic(path, text)


def replace(temporary: Path, path: Path) -> None:
    """Give a temporary file its final name. Raises FileExistsError if that is not a file."""
    permissions(path)
    temporary.replace(path)


def claim(path: Path) -> Path:
    """Rename a file to this process's temporary name: only one process gets it. Raises OSError."""
    permissions(path)
    return path.rename(temporary_name(path))


def move(path: Path, name: Path) -> None:
    """Rename a file or folder. Raises FileExistsError if the new name exists."""
    if os.path.lexists(name):
        raise FileExistsError(f"{name} already exists")
    path.rename(name)


def set_aside(path: Path, word: str) -> Path:
    """Rename a file or folder to the first free name of NAME.<word>-1, -2, and return it."""
    return path.rename(_free_name(path, f".{word}-"))


def link_atomic(link: Path, target: str) -> bool:
    """Create or replace a symbolic link in one step. Return False if `link` is not one."""
    if os.path.lexists(link) and not link.is_symlink():
        return False
    # random suffix: several threads of this process may create the same link at once
    temporary = link.with_name(f"{temporary_name(link).name}-{os.urandom(2).hex()}")
    temporary.symlink_to(target)
    temporary.replace(link)
    return True


def permissions(path: Path) -> int | None:
    """Return the permissions of an ordinary file, if it exists. Raises FileExistsError."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        raise not_ordinary_error(path, mode)
    return stat.S_IMODE(mode)


def not_ordinary_error(path: Path, mode: int, wanted: str = "file") -> FileExistsError:
    """Return the error for something that is not an ordinary file or folder."""
    if stat.S_ISREG(mode):
        return FileExistsError(f"{path} is not a folder")
    kind = "a folder" if stat.S_ISDIR(mode) else "a link" if stat.S_ISLNK(mode) else "a pipe or device"
    return FileExistsError(f"{path} is {kind}, not an ordinary {wanted}")


def _free_name(path: Path, ending: str) -> Path:
    names = (path.with_name(f"{path.name}{ending}{number}") for number in count(1))
    return next(name for name in names if not os.path.lexists(name))


_FLAGS = {"rb": os.O_RDONLY, "ab": os.O_WRONLY | os.O_APPEND | os.O_CREAT, "wb": os.O_WRONLY | os.O_CREAT}


def open_file(path: Path, mode: Literal["rb", "ab", "wb"]) -> FileIO:
    """Open an ordinary file, unbuffered.

    A file with a second name (a hard link) is replaced by a copy before it is written, so the other name keeps its content. Raises like
    `open_descriptor`; nothing has changed then.
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
    with open_file(path, "rb") as old:
        write_atomic(path, old.readall())
    return open_file(path, mode)


def make_folder(folder: Path) -> None:
    """Make a folder in an existing one, unless it exists. Raises OSError."""
    try:
        os.mkdir(folder)
    except FileExistsError:
        if not stat.S_ISDIR(mode := folder.lstat().st_mode):
            raise not_ordinary_error(folder, mode, "folder") from None


def dumps(data: Any) -> str:
    """Return `data` as indented JSON that ends with a newline; paths are strings."""
    return json.dumps(finite(data), indent=2, allow_nan=False, default=os.fspath) + "\n"


def loads(text: str) -> Any:
    """Parse the output of `dumps`. Raises ValueError, also for nan, inf and larger integers."""

    def read_integer(digits: str) -> int:
        if len(digits) > 20:  # the characters of a 64-bit integer, with its sign
            raise ValueError(f"{digits[:20]}... is too large")
        return int(digits)

    def read_number(digits: str) -> float:
        if not math.isfinite(number := float(digits)):
            raise ValueError(f"{digits} is not finite")
        return number

    try:
        return json.loads(text, parse_int=read_integer, parse_float=read_number, parse_constant=read_number)
    except RecursionError as error:
        raise ValueError("too many nested brackets") from error


def finite(data: Any) -> Any:
    """Return the data with nan and inf replaced by None, at any depth."""
    if isinstance(data, dict):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file. Empty if it can't be read."""
    content = None
    with suppress(ValueError):
        content = loads(try_read(path))
    return content if isinstance(content, dict) else {}
