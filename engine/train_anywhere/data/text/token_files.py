"""Token files, made once from the documents.

For each part: `train.tokens`, uint16 or uint32: the end symbol, and then each document with the end symbol behind it; and `train.ends`,
int64: where each document ends there (the position after its end symbol). Then the tokenizer, and at last the manifest with sizes and
checksums.
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
from train_anywhere.data.text.document_split import PARTS, digest, part_of_each
from train_anywhere.data.text.sources import Sources
from train_anywhere.data.text.tokenizer import MODEL, Tokenizer, read_tokenizer, train_bpe
from train_anywhere.data.text.vocabulary import MANIFEST
from train_anywhere.errors import DataError
from train_anywhere.files.atomic import write_atomic
from train_anywhere.files.plain_json import dumps

LEARNT = 2**25
"""Characters that a tokenizer is trained on, at most: a sample of the training texts if there are more."""

EVERY = 10.0
"""Seconds between two lines about the progress."""


@dataclass(frozen=True)
class Settings:
    """What token files depend on besides the texts; `vocabulary` is the number of tokens."""

    tokenizer: str
    vocabulary: int
    val_fraction: float
    test_fraction: float

    @property
    def type(self) -> str:
        """Of a token in the files, as numpy calls it."""
        return "<u2" if self.vocabulary <= 2**16 else "<u4"


def build(folder: Path, sources: Sources, settings: Settings) -> None:
    """Write the token files of `sources` into an empty folder, with lines about the progress.

    Raises:
        DataError: a text can't be read, or there are too few.
        OSError: the disk refuses.
    """
    digests, sizes = _survey(sources)
    part = part_of_each(digests, settings.val_fraction, settings.test_fraction, str(sources))
    left: Counter[str] = Counter()
    if plain := [file for file in sources.listing(left) if file.suffix.lower() == ".json"]:
        say(f"{plain[0]} is read as one plain text; only in *.jsonl is each line a document of its own.")
    size = f"{len(part):,} documents, {int(sizes.sum()):,} characters"
    say(f"{sources}: {size}, to be tokens in {folder.parent}{describe(left)}")
    if settings.tokenizer == "bpe":
        say(f"{sources}: training a tokenizer of {settings.vocabulary:,} tokens")
        chosen = _sample(part, digests, sizes)
        texts = (text for (_, text), wanted in zip(sources.documents(), chosen, strict=False) if wanted)
        _write(folder / MODEL, train_bpe(texts, settings.vocabulary, LEARNT))
    tokenizer = read_tokenizer(folder, settings.tokenizer, settings.vocabulary)
    parts = [
        _Part(folder, name, settings.type, tokenizer) for n, name in enumerate(PARTS) if (part == n).any()
    ]
    progress = _Progress(str(sources), len(part))
    # a file that changes meanwhile is found by the caller
    for (_, text), number in zip(sources.documents(), part.tolist(), strict=False):
        parts[number].add(tokenizer.encode(text))
        progress.advance()
    for one in parts:
        one.close()
    say(
        f"{sources}: {', '.join(f'{len(p.ends):,} documents with {p.length - 1:,} tokens to {p.name}' for p in parts)}"
    )
    _write_manifest(folder, settings)


class _Part:
    """The two files of a part, as they are written."""

    def __init__(self, folder: Path, name: str, type: str, tokenizer: Tokenizer) -> None:
        self.folder, self.name, self.type, self.end = folder, name, type, tokenizer.end
        self.ends, self.length = array("q"), 0
        self.file = (folder / f"{name}.tokens").open("xb")
        self._append(np.array([self.end]))

    def add(self, tokens: np.ndarray) -> None:
        """A document, int64 [n]."""
        self._append(np.append(tokens, self.end))
        self.ends.append(self.length)

    def _append(self, tokens: np.ndarray) -> None:
        self.file.write(tokens.astype(self.type).tobytes())
        self.length += len(tokens)

    def close(self) -> None:
        """Write what is left."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        _write(self.folder / f"{self.name}.ends", np.array(self.ends, "<i8").tobytes())


def _survey(sources: Sources) -> tuple[np.ndarray, np.ndarray]:
    """Digest and length in characters of each document: uint64 [n], int64 [n]."""
    digests, sizes = array("Q"), array("q")
    for _, text in sources.documents():
        digests.append(digest(text))
        sizes.append(len(text))
    if not digests:
        raise DataError(f"data.dir: {sources} has no texts, or only empty ones; put some there.")
    return np.array(digests, np.uint64), np.array(sizes, np.int64)


def _sample(part: np.ndarray, digests: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Which documents a tokenizer is trained on, bool [n]: training ones, by their digests, until there is enough."""
    train = np.flatnonzero(part == PARTS.index("train"))
    train = train[np.argsort(digests[train], kind="stable")]
    before = np.cumsum(sizes[train]) - sizes[train]
    chosen = np.zeros(len(part), bool)
    chosen[train[before < LEARNT]] = True
    return chosen


def _write(path: Path, content: bytes) -> None:
    """A new file, on the disk when this returns."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _write_manifest(folder: Path, settings: Settings) -> None:
    files = {f.name: {"size": f.stat().st_size, "sha256": checksum(f)} for f in _of_build(folder)}
    write_atomic(folder / MANIFEST, dumps({**asdict(settings), "type": settings.type, "files": files}))


def _of_build(folder: Path) -> Iterator[Path]:
    yield from (f for f in sorted(folder.iterdir()) if not f.name.startswith("."))


def checksum(path: Path) -> str:
    """SHA-256 of a file. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Progress:
    """A line every few seconds."""

    def __init__(self, source: str, total: int) -> None:
        self.source, self.total, self.done, self.said = source, total, 0, time.monotonic()

    def advance(self) -> None:
        """One document more."""
        self.done += 1
        if time.monotonic() - self.said > EVERY:
            self.said = time.monotonic()
            say(f"{self.source}: {self.done:,} of {self.total:,} documents are tokens")


def say(line: str) -> None:
    """A line to the log."""
    print(line, file=sys.stderr, flush=True)
