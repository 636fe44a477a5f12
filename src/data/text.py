"""text: documents as rows of tokens for a language model, read from token files that are written once."""

import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import compress
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from src.data.documents import digest, list_files, read_documents, split_sizes
from src.data.tokenizer import Bytes, Pieces, train_bpe
from train_anywhere.config import AbsoluteFolder, Probability, Range, resolve_node_path
from train_anywhere.data import Splits, Staged, as_it_is, prepare_folder
from train_anywhere.errors import DataError

Documents = Callable[[], Iterator[str]]
SPLITS = ("train", "val", "test")
INFO, TOKENIZER = "info.json", "tokenizer.json"

MAX_CHARACTERS = 2**25
"""About the most characters to train a tokenizer on, a sample of the training documents."""

SMALL = 2**26
"""Bytes of documents up to which their content decides whether token files are up to date; above, sizes and times decide."""


@dataclass
class TokenRows:
    """Rows of `length` + 1 tokens: each is predicted from those before it, and the last one is the first of the next row.

    Attributes:
        file: tokens of numpy's `type`: the end symbol, then each document followed by it.
        targets: number of tokens after the first one.
        width: mean number of UTF-8 bytes of a target.
        length: number of targets in a row.
        end: the end symbol, also used as padding.
        apart: documents do not see each other, and the first token of each is not predicted.
    """

    file: Path
    type: str
    targets: int
    width: float
    length: int
    end: int
    apart: bool

    @cached_property
    def tokens(self) -> np.ndarray:
        """The memory-mapped file, [targets + 1]."""
        return np.memmap(self.file, self.type, mode="r")

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the memory map, of which a loader's process would get a copy."""
        return {name: value for name, value in vars(self).items() if name != "tokens"}

    def __len__(self) -> int:
        return -(-self.targets // self.length)

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """Return the number of targets in each row that count: float64 [n], at least 1."""
        if not self.apart:
            return np.minimum(self.length, self.targets - indices * self.length).astype(np.float64)
        documents = self.read(indices, 0, False)["documents"]
        counts = (documents[:, 1:] == documents[:, :-1]) & (documents[:, 1:] >= 0)
        return np.maximum(counts.sum(1), 1).astype(np.float64)

    def read(self, indices: np.ndarray, epoch: int, train: bool) -> dict[str, np.ndarray]:
        """Return arrays by name, without augmentation.

        - tokens: int32 [n, length + 1].
        - documents: int32 [n, length + 1], the number of the token's document in its row if `apart`, else 0; -1: padding. A target
          counts if the token before it is of the same document.
        - bytes: float32 [n], number of UTF-8 bytes of the targets, exact in the sum over a split.
        """
        positions = indices[:, np.newaxis] * self.length + np.arange(self.length + 1)
        real = positions <= self.targets
        tokens = np.where(real, self.tokens[np.minimum(positions, self.targets)], self.end).astype(np.int32)
        documents = np.zeros_like(tokens)
        if self.apart:
            documents[:, 1:] = np.cumsum(tokens[:, :-1] == self.end, axis=1)
        width = (real[:, 1:].sum(1) * self.width).astype(np.float32)
        return {"tokens": tokens, "documents": np.where(real, documents, -1), "bytes": width}


def open_text(
    dir: AbsoluteFolder | None,
    files: list[str],
    text_key: str,
    cache: AbsoluteFolder,
    tokenizer: Literal["bytes", "bpe"] | AbsoluteFolder,
    vocabulary: Annotated[int, Range(at_least=320, at_most=1_048_576, hint="256 are the bytes")],
    val_fraction: Annotated[float, Range(above=0, below=1)],
    test_fraction: Probability,
    length: Annotated[int, Range(at_least=2, at_most=1_048_576)],
    documents: Literal["packed", "apart"],
    staged: Staged = as_it_is,
) -> Splits:
    """Open documents as `TokenRows`; configs/data/text.yaml explains the arguments.

    The content of a document decides its split. The facts are `vocabulary`, `length` and `text`, the tokenizer.

    Raises:
        DataError: a document can't be read, there are too few, or the cache can't be written.
    """
    path = None if dir is None else Path(resolve_node_path(dir))
    tokenizer = resolve_node_path(tokenizer)
    read = partial(read_documents, path, files, text_key)
    state = partial(_state, path, files, tokenizer)
    known = state()

    def write(folder: Path) -> None:
        rows = np.array([(digest(document), len(document)) for document in read()], np.uint64).reshape(-1, 2)
        split = assign_splits(rows[:, 0], val_fraction, test_fraction, path)
        step = 1 + int(rows[:, 1].sum()) // MAX_CHARACTERS
        write_tokens(folder, read, split, step, tokenizer, vocabulary)
        if state() != known:
            raise DataError(f"data.dir: {path} changed while it was read; start again when it is complete.")

    inputs = json.dumps([1, known, text_key, tokenizer == "bpe" and vocabulary, val_fraction, test_fraction])
    name = f"tokens-{hashlib.sha256(inputs.encode()).hexdigest()[:24]}"
    folder = prepare_folder(Path(resolve_node_path(cache)) / name, write)
    text = _read_tokenizer(folder, tokenizer)
    near = staged(folder)  # ranks read the token files in each epoch, not the documents
    splits: dict[str, Any] = {}
    try:
        for split, (kind, targets, width) in json.loads((near / INFO).read_text()).items():
            file = near / f"{split}.tokens"
            splits[split] = TokenRows(file, kind, targets, width, length, text.end, documents == "apart")
            if len(splits[split].tokens) != splits[split].targets + 1:
                raise ValueError(f"{file.name} has the wrong size")
    except (OSError, ValueError, TypeError) as error:
        raise DataError(
            f"data.cache: {near} is damaged ({error}); delete it, the next run writes it again."
        ) from error
    size = vocabulary if tokenizer == "bpe" else text.size
    return Splits(**splits, facts={"vocabulary": size, "length": length, "text": text})


def _state(path: Path | None, files: list[str], tokenizer: str) -> list[Any]:
    """Return what the token files depend on: the tokenizer, names of files, and their contents, or sizes and times of large ones."""
    own = [] if tokenizer in ("bytes", "bpe") else [Path(tokenizer)]
    if path is None:
        return [tokenizer, *map(digest, read_documents(None, (), "")), *map(_checksum, own)]
    found = [(file, file.stat()) for file in list_files(path, files)]
    small = sum(status.st_size for _, status in found) <= SMALL
    states = [_checksum(file) if small else [s.st_size, s.st_mtime_ns] for file, s in found]
    names = [str(file.relative_to(path)) for file, _ in found]
    return [tokenizer if not own else "", names, states, *map(_checksum, own)]


def _checksum(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def assign_splits(
    digests: np.ndarray, val_fraction: float, test_fraction: float, source: object
) -> np.ndarray:
    """Return the index in `SPLITS` of each document, int8 [n], from the digests, uint64 [n]; `source` is for the message.

    The documents of the smallest digests are for test, the next for val. So equal documents are always in the same split, names and
    order of files do not matter, and a new document moves few others. Raises DataError if there are too few.
    """
    different = np.unique(digests)
    val, test = split_sizes(len(different), val_fraction, test_fraction, source)
    rank = np.searchsorted(different, digests)
    return np.where(rank < test, 2, np.where(rank < test + val, 1, 0)).astype(np.int8)


def write_tokens(
    folder: Path, read: Documents, split: np.ndarray, step: int, tokenizer: str, vocabulary: int
) -> None:
    """Write the tokenizer and the token files of all documents, and log it.

    Args:
        folder: an empty folder.
        read: returns an iterator over the documents.
        split: int8 [n], the index in `SPLITS` of each document.
        step: each `step`-th training document is used to train a tokenizer.
        tokenizer: "bytes", "bpe" with `vocabulary` tokens, or a tokenizer.json file.
        vocabulary: number of tokens of "bpe".

    Raises:
        DataError: a document can't be read.
    """
    _log(f"{len(split):,} documents: writing tokens to {folder.parent}")
    if tokenizer == "bpe":
        sample = np.isin(np.arange(len(split)), np.flatnonzero(split == 0)[::step])
        train_bpe(compress(read(), sample), vocabulary, folder / TOKENIZER)
    elif tokenizer != "bytes":
        shutil.copyfile(tokenizer, folder / TOKENIZER)
    text = _read_tokenizer(folder, tokenizer)
    type = "<u2" if text.size <= 2**16 else "<u4"
    counts = {name: [0, 0] for n, name in enumerate(SPLITS) if (split == n).any()}
    with ExitStack() as stack:
        opened = {name: stack.enter_context((folder / f"{name}.tokens").open("xb")) for name in counts}
        for file in opened.values():
            file.write(np.array([text.end], type).tobytes())
        # not strict: the caller detects files that change meanwhile
        for document, n in zip(read(), split.tolist(), strict=False):
            tokens = text.encode(document)
            if len(tokens):
                opened[SPLITS[n]].write(np.append(tokens, text.end).astype(type).tobytes())
                counts[SPLITS[n]][0] += len(tokens) + 1
                counts[SPLITS[n]][1] += len(document.encode())
    info = {name: [type, targets, size / max(1, targets)] for name, (targets, size) in counts.items()}
    (folder / INFO).write_text(json.dumps(info))
    _log(", ".join(f"{targets:,} tokens to {name}" for name, (targets, _) in counts.items()))


def _read_tokenizer(folder: Path, tokenizer: str) -> Bytes | Pieces:
    return Bytes() if tokenizer == "bytes" else Pieces(folder / TOKENIZER, literal=tokenizer == "bpe")


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
