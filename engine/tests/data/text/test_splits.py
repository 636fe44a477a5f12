"""data=text as a whole, and through the loaders of both frameworks."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from train_anywhere.config.instantiate import instantiate
from train_anywhere.data.dataset import Splits
from train_anywhere.data.open_data import open_splits
from train_anywhere.data.order.assignment import BatchOrder
from train_anywhere.data.text.tokenizer import read_tokenizer
from train_anywhere.data.tf.pipeline import tf_dataset
from train_anywhere.data.torch.loader import Batches, torch_loader
from train_anywhere.data.torch.samples import Reader
from train_anywhere.errors import DataError

NAMES = ("train", "val", "test")


def text_of(splits: Splits, name: str, tokenizer: Any) -> list[str]:
    """The documents of a part, from its packed rows."""
    part = getattr(splits, name)
    rows = part.read(np.arange(len(part)), 0, False)
    targets = rows["tokens"][:, 1:][rows["documents"][:, 1:] >= 0]
    pieces = np.split(targets, np.flatnonzero(targets == tokenizer.end) + 1)
    return [tokenizer.decode(piece) for piece in pieces if len(piece)]


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_each_document_is_in_one_part_and_comes_back_exactly(
    open_corpus: Callable[..., Splits], corpus: Path, kind: str
) -> None:
    splits = open_corpus(tokenizer=kind)
    tokenizer = read_tokenizer(Path(splits.facts["tokenizer"]), kind, 320)
    found = [text_of(splits, name, tokenizer) for name in NAMES]
    assert [len(texts) for texts in found] == [14, 4, 2]
    assert sorted(t for texts in found for t in texts) == sorted(f.read_text() for f in corpus.rglob("*.*"))
    assert splits.facts["vocabulary"] == (257 if kind == "bytes" else 320) == len(tokenizer.widths)
    assert splits.facts["length"] == 16 and splits.facts["text"].end == tokenizer.end


@pytest.mark.parametrize("documents", ["packed", "apart"])
def test_bits_per_byte_has_all_bytes_of_the_texts(
    open_corpus: Callable[..., Splits], corpus: Path, documents: str
) -> None:
    splits = open_corpus(tokenizer="bpe", documents=documents)
    total = sum(
        getattr(splits, name).read(np.arange(len(getattr(splits, name))), 0, False)["bytes"].sum()
        for name in NAMES
    )
    assert total == sum(f.stat().st_size for f in corpus.rglob("*.*"))


def test_the_length_of_rows_needs_no_other_token_files(open_corpus: Callable[..., Splits]) -> None:
    folders = {
        open_corpus(length=n, documents=d).facts["tokenizer"] for n in (4, 64) for d in ("packed", "apart")
    }
    assert len(folders) == 1


def test_a_part_shorter_than_a_row_is_one_padded_row(open_corpus: Callable[..., Splits]) -> None:
    for documents in ("packed", "apart"):
        test = open_corpus(length=5000, documents=documents).test
        rows = test.read(np.array([0]), 0, False)
        assert len(test) == 1 and rows["tokens"].shape == (1, 5001) and rows["documents"].min() == -1


def test_more_tokens_than_two_bytes_can_count(open_corpus: Callable[..., Splits]) -> None:
    few, many = (open_corpus(tokenizer="bpe", vocabulary=n).train for n in (2**16, 2**16 + 1))
    assert [part.tokens.array.itemsize for part in (few, many)] == [2, 4]
    np.testing.assert_array_equal(few.tokens.array, many.tokens.array)


def test_without_a_test(open_corpus: Callable[..., Splits]) -> None:
    assert open_corpus(test_fraction=0.0).test is None


def test_lines_of_json_are_the_same_documents(
    open_corpus: Callable[..., Splits], corpus: Path, tmp_path: Path
) -> None:
    lines = [json.dumps({"body": f.read_text()}) for f in sorted(corpus.rglob("*.*"))]
    (tmp_path / "all.jsonl").write_text("\n".join(lines))
    splits = open_corpus(dir=str(tmp_path / "all.jsonl"), text_key="body")
    indices = np.arange(len(splits.val))
    tokenizer = read_tokenizer(Path(splits.facts["tokenizer"]), "bytes", 257)
    expected = sorted(text_of(open_corpus(), "val", tokenizer))
    assert sorted(text_of(splits, "val", tokenizer)) == expected
    assert splits.val.sizes(indices).sum() == sum(len(t.encode()) + 1 for t in expected)


def test_one_document_has_nothing_to_validate_on(open_corpus: Callable[..., Splits], corpus: Path) -> None:
    with pytest.raises(DataError, match=r"00\.txt has 1 different document, and train, val and test need"):
        open_corpus(dir=str(corpus / "00.txt"))


def test_the_default_is_the_help_of_python(make_config: Callable[..., Any], tmp_path: Path) -> None:
    data = make_config("data=text", f"paths.data={tmp_path}").data
    splits = open_splits(data, "lightning", seed=1)
    assert len(splits.train) > 1000 and len(splits.val) > 50 and len(splits.test) > 10
    assert Path(splits.facts["tokenizer"]).parent == tmp_path / "text"
    again = instantiate(data, "data", "keras", seed=2)
    np.testing.assert_array_equal(
        again.train.read(np.arange(3), 0, True)["tokens"], splits.train.read(np.arange(3), 0, True)["tokens"]
    )


def whole(train: Any) -> list[tuple[dict[str, np.ndarray], np.ndarray]]:
    """Two batches of the second epoch, on one rank."""
    order = BatchOrder(12, seed=3, train=True)
    found = [order.rows(len(train), 1, batch, train.sizes) for batch in (0, 1)]
    return [(train.read(rows, 1, True), weights) for rows, weights in found]


def same(expected: dict[str, np.ndarray], parts: list[dict[str, Any]]) -> None:
    assert expected.keys() == parts[0].keys()
    for name, value in expected.items():
        found = np.concatenate([np.asarray(part[name]) for part in parts])
        assert found.dtype == value.dtype
        np.testing.assert_array_equal(found, value)


@pytest.mark.parametrize("world, workers", [(1, 0), (2, 2), (3, 0)])
@pytest.mark.parametrize("documents", ["packed", "apart"])
@pytest.mark.quick("packed-3-0", "apart-1-0")
def test_torch_has_the_rows_of_one_rank(
    open_corpus: Callable[..., Splits], world: int, workers: int, documents: str
) -> None:
    train = open_corpus(documents=documents).train
    ranks = []
    for rank in range(world):
        order = BatchOrder(12, seed=3, rank=rank, world_size=world, train=True)
        loader = torch_loader(Batches(Reader(train, 0), order, True), workers=workers, start_epoch=1)
        loader.sampler.set_epoch(1)
        ranks.append(list(loader)[:2])
    for (rows, weights), *parts in zip(whole(train), *ranks, strict=True):
        same(rows, [part.rows for part in parts])
        np.testing.assert_array_equal(np.concatenate([part.weight for part in parts]), weights)


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("documents", ["packed", "apart"])
def test_tensorflow_has_the_rows_of_one_rank(
    open_corpus: Callable[..., Splits], world: int, documents: str
) -> None:
    train = open_corpus(documents=documents).train
    orders = [BatchOrder(12, seed=3, rank=rank, world_size=world, train=True) for rank in range(world)]
    ranks = [list(tf_dataset(train, order, start_epoch=1).take(2).as_numpy_iterator()) for order in orders]
    for (rows, weights), *parts in zip(whole(train), *ranks, strict=True):
        same(rows, [part[0] for part in parts])
        np.testing.assert_array_equal(np.concatenate([part[1] for part in parts]), weights)


def test_tensorflow_knows_the_shapes_beforehand(open_corpus: Callable[..., Splits]) -> None:
    spec, _ = tf_dataset(open_corpus().train, BatchOrder(12, seed=0, world_size=3, train=True)).element_spec
    assert {n: s.shape.as_list() for n, s in spec.items()} == {
        "tokens": [4, 17],
        "documents": [4, 17],
        "bytes": [4],
    }
