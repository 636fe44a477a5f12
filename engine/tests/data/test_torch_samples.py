"""Samples of a map-style data set, and arrays of any kind."""

import random
from typing import Any

import numpy as np
import pytest
import torch

from train_anywhere.data.order.assignment import BatchOrder
from train_anywhere.data.torch.arrays import to_tensors
from train_anywhere.data.torch.loader import Batches, torch_loader
from train_anywhere.data.torch.samples import Reader
from train_anywhere.errors import DataError


class Drawn:
    """Samples that are drawn anew at each reading, by all three generators."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> dict[str, Any]:
        drawn = [random.random(), float(np.random.rand()), float(torch.rand(()))]
        return {"drawn": np.array(drawn), "name": str(index), "number": index}


def test_what_a_row_draws_depends_on_seed_epoch_and_row_alone() -> None:
    reader = Reader(Drawn(), seed=1)
    together = reader.read(np.array([3, 5]), 2, True)
    alone = reader.read(np.array([5]), 2, True)
    assert torch.equal(together["drawn"][1:], alone["drawn"])
    assert together["name"] == ["3", "5"] and together["number"].tolist() == [3, 5]
    assert not torch.equal(reader.read(np.array([5]), 3, True)["drawn"], alone["drawn"])
    assert not torch.equal(Reader(Drawn(), seed=2).read(np.array([5]), 2, True)["drawn"], alone["drawn"])


def test_reading_leaves_the_random_numbers_of_the_model_alone() -> None:
    torch.manual_seed(0)
    wanted = torch.rand(3)
    torch.manual_seed(0)
    Reader(Drawn(), 1).read(np.array([0]), 0, True)
    assert torch.equal(torch.rand(3), wanted)


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_change_nothing(workers: int) -> None:
    order = BatchOrder(4, seed=0, train=True, drop_last=True)
    found = list(torch_loader(Batches(Reader(Drawn(), 0), order, True), workers=workers))
    wanted = list(torch_loader(Batches(Reader(Drawn(), 0), order, True)))
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one["drawn"], other["drawn"])


class Own(Drawn):
    """Has a collate function."""

    def collate_fn(self, samples: list[Any]) -> int:
        return len(samples)


def test_a_data_set_may_put_its_samples_together_itself() -> None:
    assert Reader(Own(), 0).read(np.arange(5), 0, True) == 5


def test_arrays_of_any_kind_become_tensors() -> None:
    rows = {
        "half": np.ones((2, 3), np.float16),
        "big": np.array([1, 2], ">i4"),
        "flipped": np.arange(2)[::-1],
        "texts": np.array(["a", "bc"]),
        "pair": (np.array([True, False]), np.zeros((2, 0))),
    }
    found = to_tensors(rows)
    assert found["half"].dtype == torch.float16 and found["big"].tolist() == [1, 2]
    assert found["flipped"].tolist() == [1, 0] and found["texts"] == ["a", "bc"]
    assert found["pair"][0].dtype == torch.bool and found["pair"][1].shape == (2, 0)
    with pytest.raises(DataError, match="an array of datetime64"):
        to_tensors(np.array(["2026-01-01"], "datetime64[D]"))


class Wrong:
    """Gives fewer rows than it is asked for."""

    def __len__(self) -> int:
        return 8

    def read(self, indices: np.ndarray, epoch: int, train: bool) -> Any:
        return {"x": np.zeros((len(indices) - 1, 2))}


def test_a_wrong_number_of_rows_is_a_sentence() -> None:
    with pytest.raises(
        DataError, match=r"was called for 4 rows, but its array\['x'\] has the shape \[3, 2\]"
    ):
        Reader(Wrong(), 0).read(np.arange(4), 0, True)
