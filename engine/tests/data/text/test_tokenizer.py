from functools import cache
from pydoc_data.topics import topics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from train_anywhere.data.text.tokenizer import Bpe, Bytes, Tokenizer, train_bpe
from train_anywhere.errors import DataError

SOME = [topics[name] for name in sorted(topics)[:20]]
ODD = [
    "",
    " ",
    "\n",
    "  a  b\t\n\n",
    "\u2581 \u2581a\u2581",
    "\u2585\u2047",
    "\0",
    "\r\n",
    "<s></s><unk><0x41>",
    "日本語 🎉 é e\u0301",
]


@cache
def bpe(vocabulary: int = 500) -> Bpe:
    return Bpe(train_bpe(SOME, vocabulary, 10**6), vocabulary)


def check(tokenizer: Tokenizer, text: str) -> None:
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text
    assert tokenizer.widths[tokens].sum() == len(text.encode())
    assert tokenizer.end not in tokens and tokenizer.widths[tokenizer.end] == 0


@pytest.mark.parametrize("text", ODD)
def test_text_comes_back_exactly(text: str) -> None:
    check(Bytes(), text)
    check(bpe(), text)


@settings(max_examples=200, deadline=None)
@given(st.text())
@pytest.mark.slow
def test_any_text_comes_back_exactly(text: str) -> None:
    check(Bytes(), text)
    check(bpe(), text)


def test_bytes_are_themselves() -> None:
    assert Bytes().encode("aé").tolist() == [97, 0xC3, 0xA9]
    assert Bytes().decode(np.array([97, 256, 0xC3])) == "a\ufffd"


def test_pairs_take_fewer_tokens_than_bytes() -> None:
    text = topics["yield"]
    assert len(bpe().encode(text)) < 0.6 * len(Bytes().encode(text))


def test_training_is_the_same_for_the_same_texts() -> None:
    assert train_bpe(SOME, 400, 10**5) == train_bpe(iter(SOME), 400, 10**5) != train_bpe(SOME, 400, 10**4)


def test_a_text_with_fewer_pairs_uses_fewer_tokens() -> None:
    tokenizer = Bpe(train_bpe(["a cat"], 4096, 10**6), 4096)
    assert tokenizer.encode("a cat").max() < 300 and len(tokenizer.widths) == 4096
    assert tokenizer.decode(np.array([4000])) == ""


def test_more_characters_than_tokens_leave_room_for_pairs() -> None:
    text = "".join(chr(0x4E00 + n) for n in range(3000)) + " the cat and the dog" * 2000
    tokenizer = Bpe(train_bpe([text], 320, 10**6), 320)
    check(tokenizer, text)
    assert len(tokenizer.encode(" the cat")) <= 2


def test_a_line_without_an_end_is_learnt_from() -> None:
    text = "the cat and the dog " * 20_000
    assert len(Bpe(train_bpe([text], 320, 10**6), 320).encode("the cat")) <= 2


def test_nothing_to_learn_from() -> None:
    with pytest.raises(DataError, match=r"nothing to learn.*use data\.tokenizer=bytes"):
        train_bpe(["\n\n"], 320, 10**6)
