"""Documents of a language model: text files, lines of JSON, or Python's own help. Needs only the standard library."""

import json
import os
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from pydoc_data.topics import topics

from train_anywhere.data import walk
from train_anywhere.errors import DataError


def list_files(path: Path, patterns: Sequence[str]) -> Iterator[Path]:
    """Yield the files at or below a path in a fixed order. Raises DataError if it is missing or a name is not a file's."""
    if os.path.isfile(path):
        yield path
        return
    if not os.path.isdir(path):
        raise DataError(f"data.dir: {path} does not exist or is no file; use data.dir=FOLDER with texts.")
    for name, kind in walk(str(path)):
        file = Path(name)
        if kind != "hidden" and any(fnmatch(file.name.lower(), p.lower()) for p in patterns):
            if kind != "file":
                raise DataError(f"data.dir: {file}: {kind} can't be read as text files; remove it.")
            yield file


def read_documents(path: Path | None, patterns: Sequence[str], key: str) -> Iterator[str]:
    """Yield the documents that are not empty in a fixed order; without a path, Python's help on each topic.

    Raises:
        DataError: a file can't be read, is not UTF-8, or has a line without a document.
    """
    if path is None:
        yield from (topics[name] for name in sorted(topics) if topics[name])
        return
    for file in list_files(path, patterns):
        try:
            with file.open("rb") as opened:
                if file.suffix.lower() == ".jsonl":
                    lines = ((f"{file}, line {n}", line) for n, line in enumerate(opened, 1) if line.strip())
                    yield from filter(None, (_parse(line, where, key) for where, line in lines))
                elif text := opened.read().decode("utf-8-sig"):
                    yield text
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"{file} can't be read ({error}); allow it (chmod u+r), convert it (iconv -t UTF-8), or name others (data.files=['*.txt'])."
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


def split_sizes(different: int, val_fraction: float, test_fraction: float) -> tuple[int, int]:
    """Return the number of different documents for val and test. Raises DataError if none is left to train on."""
    test = max(1, int(test_fraction * different)) if test_fraction else 0
    val = max(1, int(val_fraction * different))
    if val + test < different:
        return val, test
    raise DataError(
        f"data.dir has too few documents: {different} different, and these fractions need {val + test + 1}; add some, name them "
        "(data.files=['*.NAME']), or split them into more files or lines of *.jsonl."
    )
