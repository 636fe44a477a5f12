"""Find and read documents: text files below a folder, lines of JSON, or Python's own help. Needs only the standard library."""

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

JSON_TYPES = {
    dict: "an object",
    list: "a list",
    bool: "true or false",
    int: "a number",
    float: "a number",
    type(None): "null",
    str: "a string",
}
"""Names of JSON types, for messages."""

JSON_LINES = ".jsonl"
"""The ending, also in upper case, of files with a document on each line; any other file is one document."""

HELP = "pydoc_data.topics"
"""The name of Python's own help."""


@dataclass(frozen=True)
class Sources:
    """A source of documents.

    Attributes:
        path: a folder or a file; None: Python's help, a document for each topic.
        files: patterns of the file names to read below a folder.
        key: the key of the document in a line of JSON.
    """

    path: Path | None
    files: tuple[str, ...]
    key: str

    def __str__(self) -> str:
        return HELP if self.path is None else str(self.path)

    def list_files(self, left: Counter[str] | None = None) -> Iterator[Path]:
        """Yield the files in a fixed order; count skipped ones in `left`.

        Raises:
            DataError: a matching name is a dead link, a pipe or a device, or a folder can't be listed.
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
                raise DataError(f"data.dir: {path} is a pipe or a device, not a text file; remove it.")
            yield path

    def read_documents(self) -> Iterator[tuple[str, str]]:
        """Yield the location and the content of each document; skip empty ones.

        Raises:
            DataError: a file can't be read, is not UTF-8, or has a line without a document.
        """
        if self.path is None:
            yield from _topics()
        for file in self.list_files():
            if file.suffix.lower() == JSON_LINES:
                yield from read_lines(file, self.key)
            elif text := _utf8(_bytes(file), str(file)):
                yield str(file), text


def _topics() -> Iterator[tuple[str, str]]:
    yield from ((name, topics[name]) for name in sorted(topics) if topics[name])


def _is_folder(path: Path) -> bool:
    mode = _mode(path, "data.dir")
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        raise DataError(
            f"data.dir: {path} is a pipe or a device; use data.dir=FOLDER with text files, or one file."
        )
    return stat.S_ISDIR(mode)


def _mode(path: Path, what: str) -> int:
    """Return the file mode of a path, following links. Raises DataError."""
    try:
        return path.stat().st_mode
    except OSError as error:
        link = f", a link to {os.readlink(path)}," if os.path.islink(path) else ""
        raise DataError(
            f"{what}: {path}{link} can't be read ({error.strerror}); use data.dir=FOLDER with text files."
        ) from error


def read_lines(file: Path, key: str) -> Iterator[tuple[str, str]]:
    """Yield location and content of the documents in a file of JSON lines; skip empty lines. Raises DataError."""
    try:
        with file.open("rb") as opened:
            for number, line in enumerate(opened, 1):
                where = f"{file}, line {number}"
                if line.strip() and (text := _text_of(line, where, key)):
                    yield where, text
    except OSError as error:
        raise unreadable_error(file, error) from error


def _text_of(line: bytes, where: str, key: str) -> str:
    try:
        found = json.loads(_utf8(line, where))
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{where} is not JSON ({error}): each line of {JSON_LINES} must be like {{{json.dumps(key)}: ...}}."
        ) from error
    if not isinstance(found, dict):
        raise DataError(
            f"{where} holds {JSON_TYPES[type(found)]}, not an object like {{{json.dumps(key)}: ...}}."
        )
    if key not in found:
        names = ", ".join(map(str, list(found)[:8])) or "nothing"
        raise DataError(f"{where} has no {key!r}, it has {names}; use data.text_key=NAME.")
    text = found[key]
    if not isinstance(text, str):
        raise DataError(
            f"{where}: {key!r} holds {JSON_TYPES[type(text)]}, not a string; use data.text_key=NAME of a string."
        )
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise DataError(
            f"{where}: {key!r} holds half of a surrogate pair, which can't be encoded; remove it."
        )
    return text


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise unreadable_error(file, error) from error


def _utf8(content: bytes, where: str) -> str:
    try:
        return content.removeprefix(BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where} is not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}; convert it (iconv -t UTF-8), or name the "
            "files to read with data.files=['*.txt']."
        ) from error


def unreadable_error(file: Path, error: OSError) -> DataError:
    """Return the error for a file that can't be opened."""
    return DataError(f"{file} can't be read ({error.strerror}); allow it (chmod u+r), or delete it.")
