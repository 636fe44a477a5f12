"""Turn strings into tokens and back without loss: each byte is a token, or byte-pair encoding (BPE) merges frequent pairs.

    tokenizer = read_tokenizer(folder, kind, vocabulary)     # the fact `tokenizer` of the data set is the folder
    tokenizer.decode(tokenizer.encode("any string")) == "any string"

BPE: P. Gage, "A new algorithm for data compression", 1994; for subwords R. Sennrich et al., https://arxiv.org/abs/1508.07909. It uses
sentencepiece, https://github.com/google/sentencepiece, with a token for each byte, so that no character is unknown.
"""

import io
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import numpy as np

from train_anywhere.data.text.vocabulary import BYTES
from train_anywhere.errors import DataError

MODEL = "tokenizer.model"
"""The file of a trained tokenizer, next to the token files. Byte tokens need none."""

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""Sentencepiece's symbol for a space; the same character in a document is encoded by its bytes."""

MAX_LINE = 10_000
"""The most characters of a training line; longer ones are cut, since sentencepiece would skip them."""


class Tokenizer(Protocol):
    """Tokens are 0 .. vocabulary - 1.

    Attributes:
        end: the end symbol, before the first document and after each one; it has no bytes.
        widths: int64 [vocabulary], number of UTF-8 bytes of each token.
    """

    end: int
    widths: np.ndarray

    def encode(self, text: str) -> np.ndarray:
        """Return the tokens of a string, int64 [n], without `end`."""
        ...

    def decode(self, tokens: np.ndarray) -> str:
        """Return the string of tokens [n]; invalid UTF-8, such as half a character, becomes U+FFFD."""
        ...


class Bytes:
    """A tokenizer with a token for each UTF-8 byte."""

    end = BYTES

    def __init__(self) -> None:
        self.widths = np.array([1] * BYTES + [0])

    def encode(self, text: str) -> np.ndarray:
        """Return the UTF-8 bytes of a string, int64 [n]."""
        return np.frombuffer(text.encode(), np.uint8).astype(np.int64)

    def decode(self, tokens: np.ndarray) -> str:
        """Return the string of bytes [n]; invalid UTF-8 becomes U+FFFD."""
        return bytes(t for t in np.asarray(tokens).tolist() if t < BYTES).decode(errors="replace")


class Bpe:
    """A tokenizer with a trained model of sentencepiece.

    Args:
        model: the content of the model's file.
        vocabulary: the configured number of tokens; the model has fewer if its training documents have too few pairs.
    """

    def __init__(self, model: bytes, vocabulary: int) -> None:
        self._model = _sentencepiece().SentencePieceProcessor(model_proto=model)
        self.end = int(self._model.eos_id())
        self._bytes = [_bytes_of(self._model, token) for token in range(self._model.get_piece_size())]
        self.widths = np.zeros(vocabulary, np.int64)
        self.widths[: len(self._bytes)] = [len(b) for b in self._bytes]
        self._separators = {
            c: [self._model.piece_to_id(f"<0x{b:02X}>") for b in c.encode()] for c in (SPACE, "\n")
        }

    def encode(self, text: str) -> np.ndarray:
        """Return the tokens of a string, int64 [n], encoded line by line as in training: no token continues across a newline."""
        parts = re.split(f"([\n{SPACE}])", text)
        encoded = self._model.encode(parts[::2], num_threads=1)
        tokens = list(encoded[0])
        for separator, after in zip(parts[1::2], encoded[1:], strict=True):
            tokens += self._separators[separator] + after
        return np.array(tokens, np.int64)

    def decode(self, tokens: np.ndarray) -> str:
        """Return the string of tokens [n]; invalid UTF-8 becomes U+FFFD, and tokens that the model does not have become nothing."""
        known = (t for t in np.asarray(tokens).tolist() if t < len(self._bytes))
        return b"".join(self._bytes[t] for t in known).decode(errors="replace")


def read_tokenizer(folder: Path, kind: str, vocabulary: int) -> Tokenizer:
    """Read the tokenizer, "bytes" or "bpe", of a folder with token files.

    Raises:
        DataError: its file is missing or damaged, or sentencepiece is not installed.
    """
    if kind == "bytes":
        return Bytes()
    try:
        return Bpe((folder / MODEL).read_bytes(), vocabulary)
    except (OSError, RuntimeError) as error:
        raise DataError(
            f"{folder / MODEL} is not a tokenizer ({error}); delete {folder}, the next run writes it again."
        ) from error


def train_bpe(documents: Iterable[str], vocabulary: int, limit: int) -> bytes:
    """Train a tokenizer on the first `limit` characters of the documents, deterministically; return the content of its file.

    Raises:
        DataError: the documents have nothing to learn from, or sentencepiece is not installed.
    """
    sample = _cut_rare("\n".join(documents)[:limit], (vocabulary - BYTES) // 2)
    lines = [line[i : i + MAX_LINE] for line in sample.split("\n") for i in range(0, len(line), MAX_LINE)]
    model = io.BytesIO()
    try:
        _sentencepiece().SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type="bpe",
            vocab_size=vocabulary,
            hard_vocab_limit=False,  # short documents have fewer pairs
            byte_fallback=True,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            allow_whitespace_only_pieces=True,
            max_sentence_length=8 * MAX_LINE,  # bytes
            unk_id=0,
            eos_id=1,
            bos_id=-1,
            pad_id=-1,
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise DataError(
            f"data.tokenizer=bpe finds nothing to learn in the training documents ({reason}); use data.tokenizer=bytes."
        ) from error
    return model.getvalue()


def _cut_rare(text: str, limit: int) -> str:
    """Cut a string at all but its `limit` most frequent characters: rare ones are encoded by bytes, so that tokens remain for pairs."""
    counts = Counter(text)
    frequent = {c for c, _ in counts.most_common(limit)} - {SPACE}
    return text.translate(dict.fromkeys(map(ord, counts.keys() - frequent), "\n"))


def _bytes_of(model, token: int) -> bytes:  # type: ignore[no-untyped-def]  # the type's package may be missing
    piece: str = model.id_to_piece(token)
    if model.is_byte(token):
        return bytes([int(piece[3:5], 16)])  # <0x41>
    return b"" if model.is_control(token) or model.is_unknown(token) else piece.replace(SPACE, " ").encode()


def _sentencepiece():  # type: ignore[no-untyped-def]
    try:
        import sentencepiece
    except ImportError as error:
        raise DataError(
            "data.tokenizer=bpe needs sentencepiece (pip install sentencepiece); without it, use data.tokenizer=bytes."
        ) from error
    return sentencepiece
