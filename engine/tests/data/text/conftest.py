"""A few small texts, and what opens them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from train_anywhere.data.dataset import Splits
from train_anywhere.data.text.splits import open_text

WORDS = "the cat and the dog sat on the mat, and then the other cat came to the mat too"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Twenty documents of different lengths, some in a folder within."""
    for n in range(20):
        file = tmp_path / "corpus" / ("more" if n % 3 else "") / f"{n:02d}.{'md' if n % 2 else 'txt'}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{n}: {WORDS[n : n + 3 * n + 1]}\n" * (1 + n % 4))
    return tmp_path / "corpus"


@pytest.fixture
def open_corpus(corpus: Path, tmp_path: Path) -> Callable[..., Splits]:
    """`open_corpus(length=8)`: the texts of `corpus` as rows of bytes, apart from what is said otherwise."""

    def opened(**changes: Any) -> Splits:
        settings: dict[str, Any] = {
            "dir": str(corpus),
            "files": ["*.txt", "*.md", "*.jsonl"],
            "text_key": "text",
            "cache": str(tmp_path / "cache"),
            "tokenizer": "bytes",
            "vocabulary": 320,
            "val_fraction": 0.2,
            "test_fraction": 0.1,
            "length": 16,
            "documents": "packed",
        }
        return open_text(**settings | changes)

    return opened
