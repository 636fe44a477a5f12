"""What is known of texts before a run starts: the function that `_check_` names in configs/data/text.yaml. No numpy."""

import os
from itertools import islice
from pathlib import Path

from train_anywhere.config.checks.writable import unwritable
from train_anywhere.config.paths import here, on_node
from train_anywhere.data.known import Known
from train_anywhere.data.text.sources import LINES, Sources, lines
from train_anywhere.data.text.vocabulary import MANIFEST, vocabulary_size
from train_anywhere.errors import DataError

LOOKED_AT = 1000
"""Files that are looked at; a million would keep whoever submits waiting."""


def text(
    dir: str | None,
    files: list[str],
    text_key: str,
    cache: str,
    tokenizer: str,
    vocabulary: int,
    val_fraction: float,
    test_fraction: float,
    length: int,
    look: bool,
) -> Known:
    """Whether there are texts that can be read, a folder for the token files, and something left to train on.

    Args:
        look: whether `dir` is a folder of this machine.
    """
    problems = [_fractions(val_fraction, test_fraction)]
    if look:
        path = None if dir is None else Path(here(dir))
        problems += [_no_texts(Sources(path, tuple(files), text_key))]
        problems += [] if on_node(cache) else [_no_cache(Path(cache))]
    facts = {"vocabulary": vocabulary_size(tokenizer, vocabulary), "length": length}
    return Known(None, facts, tuple(p for p in problems if p), ("tokenizer", "text"))


def _fractions(val: float, test: float) -> str:
    if val + test < 1:
        return ""
    return (
        f"data.val_fraction={val:g} and data.test_fraction={test:g} leave nothing to train on; use less than 1 together, such as "
        "data.val_fraction=0.1 data.test_fraction=0.1."
    )


def _no_cache(cache: Path) -> str:
    """Why token files can't be made; a cache of someone else's that holds some may do without."""
    try:
        words = "" if any(cache.glob(f"*/{MANIFEST}")) else unwritable(cache)
    except (OSError, ValueError) as error:
        words = f"it can't be used ({getattr(error, 'strerror', None) or error})"
    return words and f"data.cache: token files are to be made in {cache}, but {words}; use data.cache=FOLDER."


def _no_texts(sources: Sources) -> str:
    """Of the first files: that there are any, that they can be opened and are not all empty, and their first line of JSON."""
    if sources.path is None:
        return ""
    try:
        found = list(islice(sources.listing(), LOOKED_AT))
        if not found:
            return f"data.dir: {sources} has no texts ({', '.join(sources.files)}); put some there, or use data.files=['*.NAME']."
        if closed := [f for f in found if not os.access(f, os.R_OK)]:
            return f"data.dir: {closed[0]} can't be read (Permission denied); allow it (chmod u+r), or delete it."
        if len(found) < LOOKED_AT and not any(f.stat().st_size for f in found):
            return f"data.dir: {sources} has only empty files; put texts there."
        for file in found:
            if file.suffix.lower() == LINES:
                next(lines(file, sources.key), None)
    except DataError as error:
        return str(error)
    return ""
