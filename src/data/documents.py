"""Documents of a language model: text files, lines of JSON, or Python's own help. Needs only the standard library."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from pydoc_data.topics import topics

from train_anywhere.data import walk
from train_anywhere.errors import DataError

JSON_LINES = ".jsonl"
"""The ending of files with a document on each line; any other file is one document."""


def list_files(path: Path | None, patterns: Sequence[str]) -> Iterator[Path]:
    """Yield the files at or below a path in a fixed order. Raises DataError if it is missing or a name is not a file's."""
    if path is None:
        return
    if not path.is_dir():
        if not path.is_file():
            what = "is a pipe or a device" if path.exists() else "does not exist"
            raise DataError(f"data.dir: {path} {what}; use data.dir=FOLDER with text files, or one file.")
        yield path
        return
    for name, kind in walk(str(path)):
        file = Path(name)
        if kind == "hidden" or not any(fnmatch(file.name.lower(), p.lower()) for p in patterns):
            continue
        if kind != "file":
            what = "a link to nothing" if kind == "dead links" else "a pipe or a device"
            raise DataError(f"data.dir: {file} is {what}, not a text file; remove it.")
        yield file


def read_documents(path: Path | None, patterns: Sequence[str], key: str) -> Iterator[str]:
    """Yield the documents that are not empty, in a fixed order; without a path, Python's help on each topic. Raises DataError."""
    if path is None:
        yield from (topics[name] for name in sorted(topics) if topics[name])
    for file in list_files(path, patterns):
        yield from filter(None, read_file(file, key))


def read_file(file: Path, key: str) -> Iterator[str]:
    """Yield the document of a text file, or those at `key` of each line of JSON.

    Raises:
        DataError: the file can't be read, is not UTF-8, or has a line without a document.
    """
    try:
        with file.open("rb") as opened:
            if file.suffix.lower() != JSON_LINES:
                yield opened.read().decode("utf-8-sig")
                return
            for number, line in enumerate(opened, 1):
                if line.strip():
                    yield _parse(line, f"{file}, line {number}", key)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{file} is not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}; convert it (iconv -t UTF-8), or name the "
            "files to read with data.files=['*.txt']."
        ) from error
    except OSError as error:
        raise DataError(
            f"{file} can't be read ({error.strerror}); allow it (chmod u+r), or delete it."
        ) from error


def _parse(line: bytes, where: str, key: str) -> str:
    try:
        text: str = json.loads(line.decode("utf-8-sig"))[key]
        text.encode()  # fails for half of a surrogate pair
        return text
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        start = line[:60].decode(errors="replace").strip()
        raise DataError(
            f"{where} is not a JSON object with a string {key!r}: {start!r}; use data.text_key=NAME, or correct the file."
        ) from error


def digest(text: str) -> int:
    """Return a 64-bit number that depends only on the document; the order of these numbers decides the split."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def split_sizes(different: int, val_fraction: float, test_fraction: float, source: object) -> tuple[int, int]:
    """Return the number of different documents for val and test; a fraction above 0 is at least one document.

    Raises:
        DataError: none is left to train on; `source` is for the message.
    """
    test = max(1, int(test_fraction * different)) if test_fraction else 0
    val = max(1, int(val_fraction * different))
    if val + test < different:
        return val, test
    names, use = ("train, val and test", ", or use data.test_fraction=0") if test else ("train and val", "")
    raise DataError(
        f"data.dir: {source} has too few documents: {different} different, and {names} need {val + test + 1} with these fractions; split "
        f"them into more files or lines of *.jsonl{use}."
    )
