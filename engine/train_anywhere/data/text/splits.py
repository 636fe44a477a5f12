"""text: rows of tokens to train, validate and test a language model on."""

from pathlib import Path
from typing import Annotated, Any, Literal

from train_anywhere.config.limits import Items, Probability, Range
from train_anywhere.config.paths import AbsoluteFolder, here
from train_anywhere.data.dataset import Splits
from train_anywhere.data.known import Staged, as_it_is
from train_anywhere.data.text.document_split import PARTS
from train_anywhere.data.text.rows import Apart, Packed, Rows, TokenFile
from train_anywhere.data.text.sources import Sources
from train_anywhere.data.text.token_cache import token_files
from train_anywhere.data.text.token_files import Settings
from train_anywhere.data.text.tokenizer import Tokenizer, read_tokenizer
from train_anywhere.data.text.vocabulary import vocabulary_size

# read from this file where a job is submitted: numbers must be written out
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
    """The documents below `dir` as `Rows`; without a folder, the help of Python itself.

    Facts: `vocabulary`, `length`, `text` (the Tokenizer), and `tokenizer`: its folder, for `read_tokenizer`.

    Args:
        files: patterns of the names that are read.
        text_key: of the text in a line of *.jsonl.
        cache: folder of token files; they are made there if they are not there yet.
        tokenizer: "bytes", or "bpe" with `vocabulary` tokens.
        val_fraction, test_fraction: of the documents.
        length: tokens that a row predicts.
        documents: "packed", rows run over the ends of documents; "apart", none sees another one.

    Raises:
        DataError: a text can't be read, there are too few, or the cache can't be written.
    """
    sources = Sources(None if dir is None else Path(here(dir)), tuple(files), text_key)
    size = vocabulary_size(tokenizer, vocabulary)
    settings = Settings(tokenizer, size, val_fraction, test_fraction)
    folder = token_files(Path(here(cache)), sources, settings)
    known = read_tokenizer(folder, tokenizer, vocabulary)
    names = PARTS if test_fraction else PARTS[:2]
    near = staged(folder)  # what ranks read again and again: the token files, not the texts
    parts: dict[str, Any] = {n: _rows(near, n, settings.type, known, length, documents) for n in names}
    facts = {
        "vocabulary": size,
        "length": length,
        "tokenizer": str(folder),
        "text": known,
    }
    return Splits(**parts, facts=facts)


def _rows(folder: Path, part: str, type: str, tokenizer: Tokenizer, length: int, documents: str) -> Rows:
    tokens, ends = TokenFile(folder / f"{part}.tokens", type), TokenFile(folder / f"{part}.ends", "<i8")
    if documents == "packed":
        return Packed(tokens, tokenizer.widths, length, tokenizer.end)
    return Apart(tokens, ends, tokenizer.widths, length, tokenizer.end)
