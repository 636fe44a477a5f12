"""Rows of tokens to train, validate and test a language model."""

from pathlib import Path
from typing import Annotated, Any, Literal

from train_anywhere.config.limits import Items, Probability, Range
from train_anywhere.config.paths import AbsoluteFolder, resolve_node_path
from train_anywhere.data.dataset import Splits
from train_anywhere.data.known import Staged, as_it_is
from train_anywhere.data.text.document_split import SPLITS
from train_anywhere.data.text.rows import PackedRows, Rows, SeparateRows, TokenFile
from train_anywhere.data.text.sources import Sources
from train_anywhere.data.text.token_cache import provide_token_files
from train_anywhere.data.text.token_files import Settings
from train_anywhere.data.text.tokenizer import Tokenizer, read_tokenizer
from train_anywhere.data.text.vocabulary import vocabulary_size

# a submission parses this file without importing it: limits must be literal numbers
Vocabulary = Annotated[
    int, Range(at_least=320, at_most=1_048_576, hint="256 are the bytes, such as data.vocabulary=4096")
]
Length = Annotated[int, Range(at_least=2, at_most=1_048_576)]


def open_text(
    dir: AbsoluteFolder | None,
    files: Annotated[list[str], Items(example="['*.txt']")],
    text_key: str,
    cache: AbsoluteFolder,
    tokenizer: Literal["bytes", "bpe"],
    vocabulary: Vocabulary,
    val_fraction: Annotated[float, Range(above=0, below=1)],
    test_fraction: Probability,
    length: Length,
    documents: Literal["packed", "apart"],
    staged: Staged = as_it_is,
) -> Splits:
    """Open the documents below `dir` as `Rows`; without a folder, those of Python's own help.

    Its facts are `vocabulary`, `length`, `text` (the Tokenizer), and `tokenizer` (its folder, for `read_tokenizer`).

    Args:
        dir: a folder with documents, or a file.
        files: patterns of the file names to read.
        text_key: key of the document in a line of *.jsonl.
        cache: folder of the token files, which are written if they are missing.
        tokenizer: "bytes", or "bpe" with `vocabulary` tokens.
        vocabulary: number of tokens of "bpe".
        val_fraction: fraction of the documents for validation.
        test_fraction: fraction of the documents for test.
        length: number of targets in a row.
        documents: "packed": rows continue across document ends; "apart": no document sees another one.
        staged: returns the copy of a folder on this node's disk.

    Raises:
        DataError: a document can't be read, there are too few, or the cache can't be written.
    """
    sources = Sources(None if dir is None else Path(resolve_node_path(dir)), tuple(files), text_key)
    size = vocabulary_size(tokenizer, vocabulary)
    settings = Settings(tokenizer, size, val_fraction, test_fraction)
    folder = provide_token_files(Path(resolve_node_path(cache)), sources, settings)
    known = read_tokenizer(folder, tokenizer, vocabulary)
    names = SPLITS if test_fraction else SPLITS[:2]
    near = staged(folder)  # ranks read the token files in each epoch, not the documents
    splits: dict[str, Any] = {n: _rows(near, n, settings.type, known, length, documents) for n in names}
    facts = {"vocabulary": size, "length": length, "tokenizer": str(folder), "text": known}
    return Splits(**splits, facts=facts)


def _rows(folder: Path, split: str, type: str, tokenizer: Tokenizer, length: int, documents: str) -> Rows:
    tokens, ends = TokenFile(folder / f"{split}.tokens", type), TokenFile(folder / f"{split}.ends", "<i8")
    if documents == "packed":
        return PackedRows(tokens, tokenizer.widths, length, tokenizer.end)
    return SeparateRows(tokens, ends, tokenizer.widths, length, tokenizer.end)
