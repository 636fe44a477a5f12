"""text: documents as rows of tokens for a language model, tokenized once."""

import hashlib
import json
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from train_anywhere.config import AbsoluteFolder, Probability, Range, resolve_node_path
from train_anywhere.data import Splits, Staged, as_it_is, prepare_folder
from train_anywhere.data.readers.documents import list_files, read_documents, split_sizes
from train_anywhere.data.readers.tokenizer import Bytes, Pieces, train_bpe
from train_anywhere.errors import DataError

SPLITS = ("train", "val", "test")
INFO, TOKENIZER = "info.json", "tokenizer.json"


@dataclass
class TokenRows:
    """Rows of `length` + 1 tokens, whose last token is the first of the next row.

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

    @property
    def tokens(self) -> np.ndarray:
        """The memory-mapped file, [targets + 1], opened anew so that no process copies it."""
        return np.memmap(self.file, self.type, mode="r")

    def __len__(self) -> int:
        return -(-self.targets // self.length)

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
    """Open documents as `TokenRows`, with the arguments of configs/data/text.yaml.

    The content of a document decides its split. The facts are `vocabulary`, `length` and `text`, the tokenizer.

    Raises:
        DataError: a document can't be read, there are too few, or the cache can't be written.
    """
    path = None if dir is None else Path(resolve_node_path(dir))
    tokenizer = resolve_node_path(tokenizer)
    read = partial(read_documents, path, files, text_key)
    own = [] if tokenizer in ("bytes", "bpe") else [Path(tokenizer)]
    text = Pieces(own[0]) if own else Bytes()
    found = [] if path is None else list_files(path, files)
    stats = [(str(file), file.stat()) for file in (*own, *found)]

    def write(folder: Path) -> None:
        split = assign_splits(read(), val_fraction, test_fraction)
        print(f"{len(split):,} documents: writing tokens to {folder.parent}", file=sys.stderr)
        if tokenizer == "bpe":
            train_bpe(compress(read(), split == 0), vocabulary, folder / TOKENIZER)
        words = Pieces(folder / TOKENIZER) if tokenizer == "bpe" else text
        _write_tokens(folder, zip(read(), split.tolist(), strict=True), words)

    known: list[Any] = [sys.version, *((name, status.st_size, status.st_mtime_ns) for name, status in stats)]
    known += [text_key, tokenizer, tokenizer == "bpe" and vocabulary, val_fraction, test_fraction]
    name = f"tokens-{hashlib.sha256(json.dumps(known).encode()).hexdigest()[:24]}"
    folder = prepare_folder(Path(resolve_node_path(cache)) / name, write)
    if tokenizer == "bpe":
        text = Pieces(folder / TOKENIZER)
    near = staged(folder)  # ranks read the token files in each epoch, not the documents
    try:
        splits = {
            split: TokenRows(
                near / f"{split}.tokens", type, targets, width, length, text.end, documents == "apart"
            )
            for split, (type, targets, width) in json.loads((near / INFO).read_text()).items()
        }
        if any(len(rows.tokens) != rows.targets + 1 for rows in splits.values()):
            raise ValueError("a file has the wrong size")
    except (OSError, ValueError) as error:
        raise DataError(
            f"data.cache: {near} is damaged ({error}); delete it, the next run writes it again."
        ) from error
    size = vocabulary if tokenizer == "bpe" else text.size
    facts = {"vocabulary": size, "length": length, "text": text}
    facts |= {"unit": "tokens", "units_per_row": length}
    return Splits(splits["train"], splits["val"], splits.get("test"), facts)


def assign_splits(documents: Iterable[str], val_fraction: float, test_fraction: float) -> np.ndarray:
    """Return the index in `SPLITS` of each document, int8 [n].

    The documents of the smallest checksums are for test, the next for val. So equal documents are always in the same split, names and
    order of files do not matter, and a new document moves few others. Raises DataError if there are too few.
    """
    digests = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) for text in documents]
    different, rank = np.unique(np.array(digests, np.uint64), return_inverse=True)
    val, test = split_sizes(len(different), val_fraction, test_fraction)
    return np.where(rank < test, 2, np.where(rank < test + val, 1, 0)).astype(np.int8)


def _write_tokens(folder: Path, documents: Iterable[tuple[str, int]], text: Bytes | Pieces) -> None:
    """Write the token files of all documents, each with the index of its split in `SPLITS`."""
    type = "<u2" if text.size <= 2**16 else "<u4"
    targets, width = [0, 0, 0], [0, 0, 0]
    with ExitStack() as stack:
        files = [stack.enter_context((folder / f"{name}.tokens").open("xb")) for name in SPLITS]
        for file in files:
            file.write(np.array([text.end], type).tobytes())
        for document, n in documents:
            if len(tokens := text.encode(document)):
                files[n].write(np.append(tokens, text.end).astype(type).tobytes())
                targets[n] += len(tokens) + 1
                width[n] += len(document.encode())
    info = {name: [type, targets[n], width[n] / targets[n]] for n, name in enumerate(SPLITS) if targets[n]}
    (folder / INFO).write_text(json.dumps(info))
