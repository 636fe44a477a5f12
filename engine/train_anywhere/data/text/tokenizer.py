"""Text to tokens and back, exactly: bytes, or byte pairs that were merged where they are frequent.

    tokenizer = read_tokenizer(folder)     # the facts of the data set name the folder
    tokenizer.decode(tokenizer.encode("any text")) == "any text"

BPE: P. Gage, "A new algorithm for data compression", 1994; for subwords R. Sennrich et al., https://arxiv.org/abs/1508.07909. Here by
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
"""The file of a trained tokenizer, beside the token files. Bytes need none."""

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""What sentencepiece writes for a space; in a text it is a rare character, which is told apart by its bytes."""

LONGEST = 10_000
"""Characters of a line that are learnt from as one: it skips longer ones."""


class Tokenizer(Protocol):
    """Tokens are 0 .. vocabulary - 1.

    Attributes:
        end: the token before the first document, and after each one. It stands for no text.
        widths: int64 [vocabulary], how many bytes of UTF-8 each token stands for.
    """

    end: int
    widths: np.ndarray

    def encode(self, text: str) -> np.ndarray:
        """The tokens of a text, int64 [n], without `end`."""
        ...

    def decode(self, tokens: np.ndarray) -> str:
        """The text of tokens [n]; what is no UTF-8, such as half a character, becomes U+FFFD."""
        ...


class Bytes:
    """Each byte of the text's UTF-8 is a token."""

    end = BYTES

    def __init__(self) -> None:
        self.widths = np.array([1] * BYTES + [0])

    def encode(self, text: str) -> np.ndarray:
        """See Tokenizer."""
        return np.frombuffer(text.encode(), np.uint8).astype(np.int64)

    def decode(self, tokens: np.ndarray) -> str:
        """See Tokenizer."""
        return bytes(t for t in np.asarray(tokens).tolist() if t < BYTES).decode(errors="replace")


class Bpe:
    """A trained model of sentencepiece.

    Args:
        model: the content of its file.
        vocabulary: what was asked for; texts that have no more frequent pairs use less.
    """

    def __init__(self, model: bytes, vocabulary: int) -> None:
        self._model = _sentencepiece().SentencePieceProcessor(model_proto=model)
        self.end = int(self._model.eos_id())
        self._bytes = [_bytes_of(self._model, token) for token in range(self._model.get_piece_size())]
        self.widths = np.zeros(vocabulary, np.int64)
        self.widths[: len(self._bytes)] = [len(b) for b in self._bytes]
        self._apart = {
            c: [self._model.piece_to_id(f"<0x{b:02X}>") for b in c.encode()] for c in (SPACE, "\n")
        }

    def encode(self, text: str) -> np.ndarray:
        """See Tokenizer. Line by line, as it was trained: no token holds the end of a line and more."""
        parts = re.split(f"([\n{SPACE}])", text)
        encoded = self._model.encode(parts[::2], num_threads=1)
        tokens = list(encoded[0])
        for between, after in zip(parts[1::2], encoded[1:], strict=True):
            tokens += self._apart[between] + after
        return np.array(tokens, np.int64)

    def decode(self, tokens: np.ndarray) -> str:
        """See Tokenizer. A token that the texts had no use for stands for nothing."""
        known = (t for t in np.asarray(tokens).tolist() if t < len(self._bytes))
        return b"".join(self._bytes[t] for t in known).decode(errors="replace")


def read_tokenizer(folder: Path, kind: str, vocabulary: int) -> Tokenizer:
    """The tokenizer of a folder with token files; reads no text.

    Raises:
        DataError: its file is missing or damaged, or sentencepiece is not installed.
    """
    if kind == "bytes":
        return Bytes()
    try:
        return Bpe((folder / MODEL).read_bytes(), vocabulary)
    except (OSError, RuntimeError) as error:
        raise DataError(
            f"{folder / MODEL} is no tokenizer ({error}); delete {folder}, it is made again."
        ) from error


def train_bpe(texts: Iterable[str], vocabulary: int, most: int) -> bytes:
    """The file of a tokenizer that is trained on the first `most` characters of the texts: the same for the same texts.

    Raises:
        DataError: there is nothing to learn from, or sentencepiece is not installed.
    """
    sample = _without_rare("\n".join(texts)[:most], (vocabulary - BYTES) // 2)
    lines = [line[i : i + LONGEST] for line in sample.split("\n") for i in range(0, len(line), LONGEST)]
    model = io.BytesIO()
    try:
        _sentencepiece().SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type="bpe",
            vocab_size=vocabulary,
            hard_vocab_limit=False,  # a short text has fewer pairs
            byte_fallback=True,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            allow_whitespace_only_pieces=True,
            max_sentence_length=8 * LONGEST,  # bytes
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
            f"data.tokenizer=bpe finds nothing to learn in the training texts ({reason}); use data.tokenizer=bytes."
        ) from error
    return model.getvalue()


def _without_rare(text: str, most: int) -> str:
    """The text cut at all but its `most` frequent characters, which become bytes: with a token for each there'd be no room for pairs."""
    counts = Counter(text)
    frequent = {c for c, _ in counts.most_common(most)} - {SPACE}
    return text.translate(dict.fromkeys(map(ord, counts.keys() - frequent), "\n"))


def _bytes_of(model, token: int) -> bytes:  # type: ignore[no-untyped-def]  # its type is in a package that may be missing
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
