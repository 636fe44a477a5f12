"""Write token files from documents.

For each split: `train.tokens`, uint16 or uint32, has the end symbol and then each document followed by the end symbol; `train.ends`, int64,
has the end of each document in it (the position after its end symbol). Then the tokenizer, and last the manifest with sizes and checksums.
"""

import hashlib
import os
import sys
import time
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from train_anywhere.data.listing import describe
from train_anywhere.data.text.document_split import SPLITS, assign_splits, digest
from train_anywhere.data.text.sources import Sources
from train_anywhere.data.text.tokenizer import MODEL, Tokenizer, read_tokenizer, train_bpe
from train_anywhere.data.text.vocabulary import MANIFEST
from train_anywhere.errors import DataError
from train_anywhere.files.atomic import write_atomic
from train_anywhere.files.plain_json import dumps

MAX_CHARACTERS = 2**25
"""The most characters to train a tokenizer on; more training documents are sampled."""

LOG_INTERVAL_S = 10.0
"""Seconds between two lines about the progress."""


@dataclass(frozen=True)
class Settings:
    """The settings of token files; `vocabulary` is the number of tokens."""

    tokenizer: str
    vocabulary: int
    val_fraction: float
    test_fraction: float

    @property
    def type(self) -> str:
        """Numpy's name of the type of a token in the files."""
        return "<u2" if self.vocabulary <= 2**16 else "<u4"


def build(folder: Path, sources: Sources, settings: Settings) -> None:
    """Write the token files of `sources` into an empty folder, and log the progress.

    Raises:
        DataError: a document can't be read, or there are too few.
        OSError: the disk failed.
    """
    digests, sizes = _measure(sources)
    split = assign_splits(digests, settings.val_fraction, settings.test_fraction, str(sources))
    left: Counter[str] = Counter()
    if plain := [file for file in sources.list_files(left) if file.suffix.lower() == ".json"]:
        log(f"{plain[0]} is read as one document; only in *.jsonl each line is a document.")
    size = f"{len(split):,} documents, {int(sizes.sum()):,} characters"
    log(f"{sources}: {size}, writing tokens to {folder.parent}{describe(left)}")
    if settings.tokenizer == "bpe":
        log(f"{sources}: training a tokenizer of {settings.vocabulary:,} tokens")
        selected = _select_sample(split, digests, sizes)
        sample = (text for (_, text), use in zip(sources.read_documents(), selected, strict=False) if use)
        _write(folder / MODEL, train_bpe(sample, settings.vocabulary, MAX_CHARACTERS))
    tokenizer = read_tokenizer(folder, settings.tokenizer, settings.vocabulary)
    used = [name for n, name in enumerate(SPLITS) if (split == n).any()]
    writers = [_SplitWriter(folder, name, settings.type, tokenizer) for name in used]
    progress = _Progress(str(sources), len(split))
    # not strict: the caller detects files that change meanwhile
    for (_, text), number in zip(sources.read_documents(), split.tolist(), strict=False):
        writers[number].add(tokenizer.encode(text))
        progress.advance()
    for writer in writers:
        writer.close()
    counts = [f"{len(w.ends):,} documents with {w.length - 1:,} tokens to {w.name}" for w in writers]
    log(f"{sources}: {', '.join(counts)}")
    _write_manifest(folder, settings)


class _SplitWriter:
    """Writes the two files of a split."""

    def __init__(self, folder: Path, name: str, type: str, tokenizer: Tokenizer) -> None:
        self.folder, self.name, self.type, self.end = folder, name, type, tokenizer.end
        self.ends, self.length = array("q"), 0
        self.file = (folder / f"{name}.tokens").open("xb")
        self._append(np.array([self.end]))

    def add(self, tokens: np.ndarray) -> None:
        """Append the tokens of a document, int64 [n]."""
        self._append(np.append(tokens, self.end))
        self.ends.append(self.length)

    def _append(self, tokens: np.ndarray) -> None:
        self.file.write(tokens.astype(self.type).tobytes())
        self.length += len(tokens)

    def close(self) -> None:
        """Flush the tokens to the disk, and write the ends."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        _write(self.folder / f"{self.name}.ends", np.array(self.ends, "<i8").tobytes())


def _measure(sources: Sources) -> tuple[np.ndarray, np.ndarray]:
    """Return digest and length in characters of each document: uint64 [n], int64 [n]."""
    digests, sizes = array("Q"), array("q")
    for _, text in sources.read_documents():
        digests.append(digest(text))
        sizes.append(len(text))
    if not digests:
        raise DataError(f"data.dir: {sources} has no text files, or only empty ones; add some.")
    return np.array(digests, np.uint64), np.array(sizes, np.int64)


def _select_sample(split: np.ndarray, digests: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Select training documents for the tokenizer, bool [n], in the order of their digests up to `MAX_CHARACTERS`."""
    train = np.flatnonzero(split == SPLITS.index("train"))
    train = train[np.argsort(digests[train], kind="stable")]
    before = np.cumsum(sizes[train]) - sizes[train]
    selected = np.zeros(len(split), bool)
    selected[train[before < MAX_CHARACTERS]] = True
    return selected


def _write(path: Path, content: bytes) -> None:
    """Write a new file; it is on the disk when this returns."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _write_manifest(folder: Path, settings: Settings) -> None:
    files = {f.name: {"size": f.stat().st_size, "sha256": checksum(f)} for f in _list_token_files(folder)}
    write_atomic(folder / MANIFEST, dumps({**asdict(settings), "type": settings.type, "files": files}))


def _list_token_files(folder: Path) -> Iterator[Path]:
    yield from (f for f in sorted(folder.iterdir()) if not f.name.startswith("."))


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Progress:
    """Logs the number of documents every few seconds."""

    def __init__(self, source: str, total: int) -> None:
        self.source, self.total, self.done, self.last = source, total, 0, time.monotonic()

    def advance(self) -> None:
        """Count one document."""
        self.done += 1
        if time.monotonic() - self.last > LOG_INTERVAL_S:
            self.last = time.monotonic()
            log(f"{self.source}: tokenized {self.done:,} of {self.total:,} documents")


def log(line: str) -> None:
    """Print a line to standard error."""
    print(line, file=sys.stderr, flush=True)
