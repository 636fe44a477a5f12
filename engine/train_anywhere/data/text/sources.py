"""The documents: text files below a folder, lines of JSON, or what Python's help says of itself. The standard library alone."""

import json
import os
import stat
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from pydoc_data.topics import topics

from train_anywhere.data.listing import left_out, walk
from train_anywhere.errors import DataError

IN_WORDS = {
    dict: "an object",
    list: "a list",
    bool: "true or false",
    int: "a number",
    float: "a number",
    type(None): "null",
    str: "a text",
}
"""Values of JSON."""

LINES = ".jsonl"
"""The ending of files with a document on each line, in upper case too; any other file is one document."""

HELP = "pydoc_data.topics"
"""The name of the text that comes with Python."""


@dataclass(frozen=True)
class Sources:
    """Where documents come from.

    Attributes:
        path: a folder or a file; None: Python's help, a document for each topic.
        files: patterns of the names that are read below a folder.
        key: of the text, in a line of JSON.
    """

    path: Path | None
    files: tuple[str, ...]
    key: str

    def __str__(self) -> str:
        return HELP if self.path is None else str(self.path)

    def listing(self, left: Counter[str] | None = None) -> Iterator[Path]:
        """Yield the files in a fixed order; what is left out is counted in `left`.

        Raises:
            DataError: a name that matches is a dead link, a pipe or a device; or a folder can't be listed.
        """
        left = Counter() if left is None else left
        if self.path is None:
            return
        if not _is_folder(self.path):
            yield self.path
            return
        for name, kind in walk(str(self.path)):
            path = Path(name)
            if kind == "hidden" or not any(fnmatch(path.name.lower(), p.lower()) for p in self.files):
                left[left_out(name, kind)] += 1
                continue
            if not stat.S_ISREG(_mode(path, "data.dir")):
                raise DataError(f"data.dir: {path} is a pipe or a device, not a text; remove it.")
            yield path

    def documents(self) -> Iterator[tuple[str, str]]:
        """Where each document is, and its text; empty ones are left out.

        Raises:
            DataError: a file can't be read, is not UTF-8, or has a line without a text.
        """
        if self.path is None:
            yield from _topics()
        for file in self.listing():
            if file.suffix.lower() == LINES:
                yield from lines(file, self.key)
            elif text := _utf8(_bytes(file), str(file)):
                yield str(file), text


def _topics() -> Iterator[tuple[str, str]]:
    yield from ((name, topics[name]) for name in sorted(topics) if topics[name])


def _is_folder(path: Path) -> bool:
    mode = _mode(path, "data.dir")
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        raise DataError(
            f"data.dir: {path} is a pipe or a device; use data.dir=FOLDER with texts in it, or a file."
        )
    return stat.S_ISDIR(mode)


def _mode(path: Path, what: str) -> int:
    """What the path is, links followed. Raises DataError."""
    try:
        return path.stat().st_mode
    except OSError as error:
        link = f", a link to {os.readlink(path)}," if os.path.islink(path) else ""
        raise DataError(
            f"{what}: {path}{link} can't be read ({error.strerror}); put texts there, or use data.dir=FOLDER."
        ) from error


def lines(file: Path, key: str) -> Iterator[tuple[str, str]]:
    """The documents of a file of JSON lines; empty lines are left out. Raises DataError."""
    try:
        with file.open("rb") as opened:
            for number, line in enumerate(opened, 1):
                where = f"{file}, line {number}"
                if line.strip() and (text := _text_of(line, where, key)):
                    yield where, text
    except OSError as error:
        raise unreadable(file, error) from error


def _text_of(line: bytes, where: str, key: str) -> str:
    try:
        found = json.loads(_utf8(line, where))
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{where} is not JSON ({error}): each line of {LINES} must be like {{{json.dumps(key)}: ...}}."
        ) from error
    if not isinstance(found, dict):
        raise DataError(
            f"{where} holds {IN_WORDS[type(found)]}, not an object like {{{json.dumps(key)}: ...}}."
        )
    if key not in found:
        names = ", ".join(map(str, list(found)[:8])) or "nothing"
        raise DataError(f"{where} has no {key!r}, it has {names}; use data.text_key=NAME.")
    text = found[key]
    if not isinstance(text, str):
        raise DataError(
            f"{where}: {key!r} holds {IN_WORDS[type(text)]}, not a text; use data.text_key=NAME of a text."
        )
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise DataError(f"{where}: {key!r} holds half of a surrogate pair, which is no character; mend it.")
    return text


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise unreadable(file, error) from error


def _utf8(content: bytes, where: str) -> str:
    try:
        return content.removeprefix(BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where} is not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}; convert it (iconv -t UTF-8), or name the "
            "files to read with data.files=['*.txt']."
        ) from error


def unreadable(file: Path, error: OSError) -> DataError:
    """The error for a text that can't be opened."""
    return DataError(f"{file} can't be read ({error.strerror}); allow it (chmod u+r), or delete it.")
