"""Strings as tokens and back: UTF-8 bytes, or the library tokenizers, https://huggingface.co/docs/tokenizers."""

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from train_anywhere.errors import DataError

END = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")
"""Usual names of the token between documents; a tokenizer.json without any gets one more token."""


class Bytes:
    """A tokenizer with a token for each byte. Tokens are 0 .. size - 1, and `end` is the one between documents."""

    size, end = 257, 256

    def encode(self, text: str) -> np.ndarray:
        """Return the tokens of a string, integers [n], without `end`."""
        return np.frombuffer(text.encode(), np.uint8)

    def decode(self, tokens: np.ndarray) -> str:
        """Return the string of tokens [n]; `end` becomes nothing, and invalid UTF-8 U+FFFD."""
        return bytes(t for t in np.asarray(tokens).tolist() if t < self.end).decode(errors="replace")


class Pieces:
    """A tokenizer like `Bytes`, of a tokenizer.json file. Raises DataError: the file is not a tokenizer."""

    def __init__(self, file: Path) -> None:
        import tokenizers

        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library's errors have no class of their own
            raise DataError(f"data.tokenizer: {file} is not a tokenizer.json file ({error}).") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        ids = self._tokenizer.get_vocab()
        unused = max(ids.values(), default=-1) + 1
        self.end = next((ids[name] for name in END if name in ids), unused)
        self.size = max(unused, self.end + 1)

    def encode(self, text: str) -> np.ndarray:
        """Return the tokens of a string, integers [n], without `end`."""
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int64)

    def decode(self, tokens: np.ndarray) -> str:
        """Return the string of tokens [n]; special and unknown ones become nothing."""
        return str(self._tokenizer.decode(np.asarray(tokens).tolist()))


def train_bpe(documents: Iterable[str], vocabulary: int, file: Path) -> None:
    """Train a tokenizer of at most `vocabulary` tokens with the one between documents, deterministically, and save it.

    Byte-pair encoding, R. Sennrich et al., https://arxiv.org/abs/1508.07909, on bytes, so that no character is unknown.
    """
    import tokenizers as library

    level = library.pre_tokenizers.ByteLevel
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = level(add_prefix_space=False), library.decoders.ByteLevel()
    alphabet = sorted(level.alphabet())
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocabulary - 1, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(documents, trainer)
    tokenizer.save(str(file))
    # the training has started threads, of which the library warns in each process that is forked later
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
