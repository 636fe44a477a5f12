import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from train_anywhere.data.dataset import DataSet, Splits
from train_anywhere.data.order.assignment import BatchOrder, batches_per_epoch
from train_anywhere.data.text.rows import PackedRows, Rows, SeparateRows, TokenFile

END, WIDTHS = 9, np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 0])


def rows_of(folder: Path, documents: list[list[int]], length: int, kind: str) -> Rows:
    stream = [END, *(token for document in documents for token in (*document, END))]
    ends = np.cumsum([len(d) + 1 for d in documents]) + 1
    np.array(stream, "<u2").tofile(folder / "tokens")
    ends.astype("<i8").tofile(folder / "ends")
    tokens = TokenFile(folder / "tokens", "<u2")
    if kind == "packed":
        return PackedRows(tokens, WIDTHS, length, END)
    return SeparateRows(tokens, TokenFile(folder / "ends", "<i8"), WIDTHS, length, END)


def test_packed_rows_run_over_the_ends_of_documents(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, [[1, 2, 3], [4, 5]], 3, "packed")
    found = rows.read(np.arange(3), 0, True)
    assert found["tokens"].tolist() == [[9, 1, 2, 3], [3, 9, 4, 5], [5, 9, 9, 9]]
    assert found["documents"].tolist() == [[0] * 4, [0] * 4, [0, 0, -1, -1]]
    assert found["bytes"].tolist() == [2 + 3 + 4, 0 + 5 + 6, 0] and rows.sizes(np.arange(3)).tolist() == [
        3,
        3,
        1,
    ]
    assert [v.dtype.name for v in found.values()] == ["int32", "int32", "float32"]


def test_documents_apart_each_begin_after_an_end(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, [[1], [2], [3, 4, 5, 6, 7, 8], [5]], 5, "apart")
    found = rows.read(np.arange(len(rows)), 0, True)
    assert found["tokens"].tolist() == [[9, 1, 9, 9, 2, 9], [9, 3, 4, 5, 6, 7], [7, 8, 9, 9, 5, 9]]
    assert found["documents"].tolist() == [[0, 0, 0, 1, 1, 1], [0] * 6, [0, 0, 0, 1, 1, 1]]
    assert rows.sizes(np.arange(3)).tolist() == [4, 5, 4]


def predicted(rows: Rows) -> tuple[list[int], float]:
    """All targets that count, in order, and their bytes; each row is checked on its own."""
    indices = np.arange(len(rows))
    found = rows.read(indices, 0, False)
    tokens, documents = found["tokens"], found["documents"]
    counts = (documents[:, 1:] == documents[:, :-1]) & (documents[:, 1:] >= 0)
    np.testing.assert_array_equal(rows.sizes(indices), counts.sum(1))
    np.testing.assert_array_equal(found["bytes"], (WIDTHS[tokens[:, 1:]] * counts).sum(1))
    assert (counts.sum(1) >= 1).all() and (tokens[documents < 0] == END).all()
    assert tokens.shape == documents.shape == (len(rows), rows.length + 1)
    return tokens[:, 1:][counts].tolist(), float(found["bytes"].sum())


texts = st.lists(st.lists(st.integers(0, 8), min_size=1, max_size=30), min_size=1, max_size=12)


@settings(max_examples=150, deadline=None)
@given(texts, st.integers(2, 20), st.sampled_from(["packed", "apart"]))
def test_each_token_is_a_target_once_in_its_order(documents: list[list[int]], length: int, kind: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        targets, width = predicted(rows_of(Path(folder), documents, length, kind))
    assert targets == [token for document in documents for token in (*document, END)]
    assert width == sum(token + 1 for document in documents for token in document)


@settings(max_examples=150, deadline=None)
@given(texts, st.integers(2, 20))
def test_no_target_of_documents_apart_sees_another_document(documents: list[list[int]], length: int) -> None:
    """Of one number are only tokens that stand one after the other in one document."""
    import tempfile

    whole = [[END, *document, END] for document in documents]
    with tempfile.TemporaryDirectory() as folder:
        rows = rows_of(Path(folder), documents, length, "apart")
        found = rows.read(np.arange(len(rows)), 0, False)
    for tokens, numbers in zip(found["tokens"], found["documents"], strict=True):
        for number in range(numbers.max() + 1):
            piece = tokens[numbers == number].tolist()
            assert any(piece == d[i : i + len(piece)] for d in whole for i in range(len(d)))


def test_a_set_travels_without_its_tokens(open_corpus: Callable[..., Splits]) -> None:
    train = open_corpus().train
    assert isinstance(train, DataSet)
    before = train.read(np.arange(4), 0, True)["tokens"]
    copy = pickle.loads(pickle.dumps(train))
    np.testing.assert_array_equal(copy.read(np.arange(4), 0, True)["tokens"], before)
    assert b"the cat" not in pickle.dumps(train)


@pytest.mark.parametrize("documents", ["packed", "apart"])
def test_ranks_see_the_same_rows_and_weigh_the_same_tokens(
    open_corpus: Callable[..., Splits], documents: str
) -> None:
    """The mean over ranks of the mean over rows of weight * loss of a row is the mean over tokens, whatever the number of ranks."""
    train = open_corpus(documents=documents).train
    seen = {}
    for world in (1, 2, 3):
        batches = []
        for batch in range(batches_per_epoch(len(train), 12)):
            ranks = [
                BatchOrder(12, seed=3, rank=r, world_size=world, train=True).rows(
                    len(train), 1, batch, train.sizes
                )
                for r in range(world)
            ]
            rows, weights = (np.concatenate(parts) for parts in zip(*ranks, strict=True))
            real = weights > 0
            sizes = train.sizes(rows[real])
            np.testing.assert_allclose(weights[real], 12 * sizes / sizes.sum(), rtol=1e-6)
            batches.append((rows.tolist(), weights.tolist()))
        seen[world] = batches
    assert seen[1] == seen[2] == seen[3]
    real = [row for rows, weights in seen[1] for row, weight in zip(rows, weights, strict=True) if weight]
    assert sorted(real) == list(range(len(train)))
    assert len({tuple(w) for _, w in seen[1]}) > 1, "rows of different sizes are what this is about"
