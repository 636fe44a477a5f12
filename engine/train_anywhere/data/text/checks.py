"""The function that `_check_` names in configs/data/text.yaml: it checks documents before a run starts, without numpy."""

import os
from itertools import islice
from pathlib import Path

from train_anywhere.config.checks.writable import write_problem
from train_anywhere.config.paths import is_on_node, resolve_node_path
from train_anywhere.data.known import Known
from train_anywhere.data.text.sources import JSON_LINES, Sources, read_lines
from train_anywhere.data.text.vocabulary import MANIFEST, vocabulary_size
from train_anywhere.errors import DataError

MAX_FILES = 1000
"""The most files to check; checking a million would delay the submission."""


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
    """Check that documents can be read, that token files can be written, and that the fractions leave documents for training.

    Parameters are the keys of the configuration; `look` is whether `dir` is a folder of this machine.
    """
    problems = [_fractions_problem(val_fraction, test_fraction)]
    if look:
        path = None if dir is None else Path(resolve_node_path(dir))
        problems += [_sources_problem(Sources(path, tuple(files), text_key))]
        problems += [] if is_on_node(cache) else [_cache_problem(Path(cache))]
    facts = {"vocabulary": vocabulary_size(tokenizer, vocabulary), "length": length}
    return Known(None, facts, tuple(p for p in problems if p), ("tokenizer", "text"))


def _fractions_problem(val: float, test: float) -> str:
    if val + test < 1:
        return ""
    return (
        f"data.val_fraction={val:g} and data.test_fraction={test:g} leave nothing to train on; their sum must be below 1, such as "
        "data.val_fraction=0.1 data.test_fraction=0.1."
    )


def _cache_problem(cache: Path) -> str:
    """Return why token files can't be written; "" if the cache has some already, which it may have from another user."""
    try:
        reason = "" if any(cache.glob(f"*/{MANIFEST}")) else write_problem(cache)
    except (OSError, ValueError) as error:
        reason = f"it can't be used ({getattr(error, 'strerror', None) or error})"
    return reason and f"data.cache: token files can't be written to {cache}: {reason}; use data.cache=FOLDER."


def _sources_problem(sources: Sources) -> str:
    """Return why the first files can't be used: none, not readable, all empty, or a wrong first line of JSON; "" if they can."""
    if sources.path is None:
        return ""
    try:
        found = list(islice(sources.list_files(), MAX_FILES))
        if not found:
            return f"data.dir: {sources} has no text files ({', '.join(sources.files)}); add some, or use data.files=['*.NAME']."
        if closed := [f for f in found if not os.access(f, os.R_OK)]:
            return f"data.dir: {closed[0]} can't be read (Permission denied); allow it (chmod u+r), or delete it."
        if len(found) < MAX_FILES and not any(f.stat().st_size for f in found):
            return f"data.dir: {sources} has only empty files; add text files."
        for file in found:
            if file.suffix.lower() == JSON_LINES:
                next(read_lines(file, sources.key), None)
    except DataError as error:
        return str(error)
    return ""
