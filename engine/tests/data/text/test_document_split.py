import numpy as np
import pytest

from train_anywhere.data.text.document_split import assign_splits, digest
from train_anywhere.errors import DataError


def parts(texts: list[str], val: float = 0.1, test: float = 0.1) -> list[int]:
    return assign_splits(np.array([digest(t) for t in texts], np.uint64), val, test, "texts").tolist()


def test_shares_are_as_asked_and_depend_on_content_alone() -> None:
    texts = [f"text {n}" for n in range(200)]
    found = parts(texts, 0.2, 0.1)
    assert [found.count(n) for n in range(3)] == [140, 40, 20]
    assert parts(texts[::-1], 0.2, 0.1) == found[::-1]


def test_equal_texts_are_in_one_part() -> None:
    texts = [f"text {n % 40}" for n in range(200)]
    of_each = dict(zip(texts, parts(texts), strict=True))
    assert [of_each[t] for t in texts] == parts(texts) and set(of_each.values()) == {0, 1, 2}


def test_a_text_more_moves_few_others() -> None:
    texts = [f"text {n}" for n in range(200)]
    before, after = parts(texts), parts([*texts, "one more"])[:-1]
    assert sum(a != b for a, b in zip(before, after, strict=True)) <= 2


@pytest.mark.parametrize("test", [0.0, 0.1])
def test_few_documents_are_enough_for_one_in_each_part(test: float) -> None:
    texts = [f"text {n}" for n in range(3 if test else 2)]
    assert sorted(parts(texts, 0.1, test)) == list(range(len(texts)))


@pytest.mark.parametrize(
    "texts, val, test, says",
    [
        (["one"], 0.1, 0.0, "has 1 different document, and train and val need .*2: split them into more"),
        (
            ["one", "two"],
            0.1,
            0.1,
            r"has 2 different documents, .* 3: split .*, or use data\.test_fraction=0",
        ),
        (["one"] * 9, 0.1, 0.0, "has 1 different document,"),
        (["one", "two", "three"], 0.1, 0.8, "with these fractions 4"),
    ],
)
def test_too_few(texts: list[str], val: float, test: float, says: str) -> None:
    with pytest.raises(DataError, match=says):
        parts(texts, val, test)
