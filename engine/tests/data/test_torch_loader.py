"""Loaders of torch: batches of rows, samples of a map-style data set, and arrays of any kind."""

import itertools
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader
from torch.utils.data.distributed import DistributedSampler

from src.data.digits import open_digits
from src.data.imagefolder import open_imagefolder
from train_anywhere.data.order.assignment import BatchOrder
from train_anywhere.data.order.shuffle import SORTED, shuffled_rows
from train_anywhere.data.torch.loader import Batches, to_tensors
from train_anywhere.data.torch.loader import torch_loader as loader_of
from train_anywhere.errors import DataError
from train_anywhere.training.lightning.loaders import is_sharded


def torch_loader(dataset: Any, order: BatchOrder, **options: Any) -> Any:
    return loader_of(Batches(dataset, replace(order, drop_last=order.train)), **options)


def test_an_evaluation_reads_each_row_once() -> None:
    val = open_digits().val
    batches = list(torch_loader(val, BatchOrder(64, seed=0), workers=0))
    assert [len(image) for image, _ in batches] == [64, 64, len(val) - 128]
    for image, label in batches:
        assert image.is_contiguous() and (image.dtype, label.dtype) == (torch.float32, torch.int64)
    assert torch.cat([label for _, label in batches]).tolist() == val.labels.tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_and_workers_do_not_change_what_is_trained_on(picture_dir: Path, workers: int) -> None:
    train = open_imagefolder(str(picture_dir), 16, 3, 0).train
    whole = list(torch_loader(train, BatchOrder(8, seed=5, train=True)))
    ranks = [
        torch_loader(train, BatchOrder(8, seed=5, rank=r, world_size=2, train=True), workers=workers)
        for r in (0, 1)
    ]
    for expected, *parts in zip(whole, *ranks, strict=True):
        for k in range(2):
            assert torch.equal(expected[k], torch.cat([part[k] for part in parts]))


@pytest.mark.parametrize("workers", [0, 2])
def test_resuming_in_the_middle_of_an_epoch(workers: int) -> None:
    train = open_digits().train
    loader = torch_loader(train, BatchOrder(128, seed=1, train=True))
    uninterrupted = []
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        uninterrupted += [label for _, label in loader]
    resumed = torch_loader(train, BatchOrder(128, seed=1, train=True), workers=workers)
    resumed.sampler.start_at(1, 4)
    assert len(resumed) == len(loader) == 9
    rest = [label for _, label in resumed]
    resumed.sampler.set_epoch(2)
    rest += [label for _, label in resumed]
    assert len(rest) == 14 and all(map(torch.equal, rest, uninterrupted[13:]))


def test_stopping_early_does_not_disturb_the_next_epoch() -> None:
    loader = torch_loader(open_digits().train, BatchOrder(128, seed=1, train=True), workers=2)
    list(itertools.islice(loader, 2))
    loader.sampler.set_epoch(1)
    expected = torch_loader(open_digits().train, BatchOrder(128, seed=1, train=True))
    expected.sampler.set_epoch(1)
    for got, wanted in zip(loader, expected, strict=True):
        assert torch.equal(got[0], wanted[0])


@pytest.mark.parametrize(("cpus", "step_s"), [(4, 0.0), (6, 0.12)])
def test_processes_are_added_until_steps_do_not_wait(cpus, step_s, monkeypatch) -> None:
    """The batches do not depend on their number. A batch needs 240 ms: steps of 120 ms wait for one process half of the time."""
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", str(cpus))
    loader = torch_loader(SlowRows(), BatchOrder(12, seed=1, train=True), workers="auto")
    counts, shares = [], []
    for epoch in range(4):
        loader.sampler.set_epoch(epoch)
        counts.append(loader.num_workers)
        plain = torch_loader(FastRows(), BatchOrder(12, seed=1, train=True))
        plain.sampler.set_epoch(epoch)
        waits, steps, asked = [], [], time.perf_counter()
        for (got,), (wanted,) in zip(loader, plain, strict=True):
            came = time.perf_counter()
            waits.append(came - asked)
            assert torch.equal(got, wanted)
            time.sleep(step_s)
            asked = time.perf_counter()
            steps.append(asked - came)
        shares.append(sum(waits[1:]) / (sum(waits[1:]) + sum(steps)))
    if step_s:
        print([f"{count} processes: waited {share:.1%}" for count, share in zip(counts, shares, strict=True)])
        assert shares[0] > 0.1 and min(shares) < shares[0] / 2 and counts[1] > 1
    else:
        assert counts == [1, 3, 3, 3]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_picture_is_one_sentence_from_any_process(picture_dir: Path, workers: int) -> None:
    train = open_imagefolder(str(picture_dir), 16, 3, 0).train
    train.path(3).write_bytes(b"nonsense")
    with pytest.raises(DataError, match=rf"^{train.path(3)} is not a picture") as caught:
        list(torch_loader(train, BatchOrder(4, seed=0, train=True), workers=workers))
    assert "\n" not in str(caught.value) and "worker" not in str(caught.value)


def test_impossible_batches_are_refused() -> None:
    train = open_digits().train
    with pytest.raises(DataError, match=rf"2048 is larger than .*, which has {len(train)} samples.* or less"):
        torch_loader(train, BatchOrder(2048, seed=0, train=True))
    torch_loader(train, BatchOrder(2048, seed=0))
    for size, use in ((64, 63), (2, 3)):
        with pytest.raises(DataError, match=rf"batch_size={size} .* 3 ranks.*data\.batch_size={use}\."):
            torch_loader(train, BatchOrder(size, seed=0, world_size=3, train=True))


class Rows:
    """Twelve rows, read as whole batches."""

    def __len__(self) -> int:
        return 12

    def read(self, indices: np.ndarray, epoch: int, train: bool) -> tuple[np.ndarray]:
        return (indices,)


class SlowRows(Rows):
    """120 rows, 20 ms for each."""

    def __len__(self) -> int:
        return 120

    def read(self, indices: np.ndarray, epoch: int, train: bool) -> tuple[np.ndarray]:
        time.sleep(0.02 * len(indices))
        return (indices,)


class FastRows(SlowRows):
    """The same, in no time."""

    read = Rows.read


def orders(batch_size: int, ranks: int, train: bool) -> list[BatchOrder]:
    return [BatchOrder(batch_size, 3, rank, ranks, train, drop_last=train) for rank in range(ranks)]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_an_evaluation_reads_every_row_once(ranks: int) -> None:
    """And no rank is without a row: it would have nothing to log."""
    parts = orders(8, ranks, False)
    for length in (4, 7, 8, 9, 16, 37):
        read = [[part.rows(length, 0, batch) for part in parts] for batch in range(parts[0].batches(length))]
        assert all(len(rows) for batch in read for rows in batch)
        assert np.concatenate([rows for batch in read for rows in batch]).tolist() == list(range(length))
        if ranks == 1:
            assert [len(batch[0]) for batch in read[:-1]] == [8] * (len(read) - 1)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize(("length", "size"), [(37, 8), (SORTED + 100, 40_000)])
def test_training_reads_whole_batches_in_our_order(ranks: int, length: int, size: int) -> None:
    parts, whole = orders(size, ranks, True), shuffled_rows(length, 3, 5, 0, length)
    assert parts[0].batches(length) == length // size
    for batch in range(length // size):
        rows = [part.rows(length, 5, batch) for part in parts]
        assert {len(own) for own in rows} == {size // ranks}
        assert np.concatenate(rows).tolist() == whole[size * batch : size * batch + size].tolist()


def test_fewer_rows_than_ranks_are_refused() -> None:
    with pytest.raises(DataError, match="an evaluation of 3 rows can't be shared by 4 ranks; use 3 or fewer"):
        orders(8, 4, False)[0].batches(3)


class Buckets(BatchSampler):
    """A batch sampler of someone's own."""


def test_a_sampler_within_a_batch_sampler_shares_the_rows() -> None:
    sampler = DistributedSampler(range(8), num_replicas=2, rank=0)
    loader = DataLoader(range(8), batch_sampler=Buckets(sampler, 2, drop_last=False))
    assert is_sharded(loader, 2) and not is_sharded(loader, 4)


class Drawn:
    """Samples that are drawn anew at each reading, by all three generators."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> dict[str, Any]:
        drawn = [random.random(), float(np.random.rand()), float(torch.rand(()))]
        return {"drawn": np.array(drawn), "name": str(index), "number": index}


def read(dataset: Any, rows: list[int], epoch: int = 0, seed: int = 1) -> Any:
    return Batches(dataset, BatchOrder(4, seed, drop_last=True)).read(np.array(rows), epoch)


def test_what_a_row_draws_depends_on_seed_epoch_and_row_alone() -> None:
    torch.manual_seed(0)
    wanted = torch.rand(3)
    torch.manual_seed(0)
    together, alone = read(Drawn(), [3, 5], 2), read(Drawn(), [5], 2)
    assert torch.equal(torch.rand(3), wanted)  # the model draws the same
    assert torch.equal(together["drawn"][1:], alone["drawn"])
    assert together["name"] == ["3", "5"] and together["number"].tolist() == [3, 5]
    for epoch, seed in ((3, 1), (2, 2)):
        assert not torch.equal(read(Drawn(), [5], epoch, seed)["drawn"], alone["drawn"])
    loaders = [torch_loader(Drawn(), BatchOrder(4, seed=0, train=True), workers=n) for n in (0, 2)]
    for one, other in zip(*loaders, strict=True):
        assert torch.equal(one["drawn"], other["drawn"])


class Own(Drawn):
    """Has a collate function."""

    def collate_fn(self, samples: list[Any]) -> int:
        return len(samples)


def test_a_data_set_may_put_its_samples_together_itself() -> None:
    assert read(Own(), [0, 1, 2, 3, 4]) == 5


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


class Wrong(Rows):
    """Returns fewer rows than it is called for."""

    def read(self, indices: np.ndarray, epoch: int, train: bool) -> Any:
        return {"x": np.zeros((len(indices) - 1, 2))}


def test_a_wrong_number_of_rows_is_a_sentence() -> None:
    with pytest.raises(DataError, match=r"called for 4 rows, but its array\['x'\] has the shape \[3, 2\]"):
        read(Wrong(), [0, 1, 2, 3])
