import numpy as np
import pytest

from train_anywhere.data.order.assignment import BatchOrder, batches_per_epoch
from train_anywhere.data.order.batch_check import check_batch
from train_anywhere.data.order.shuffle import SORTED
from train_anywhere.errors import DataError


def epoch_rows(length: int, batch_size: int, world_size: int, shuffle: bool = True, epoch: int = 0):
    """Indices [batches, B] and weights [batches, B] of an epoch, the ranks' parts side by side."""
    orders = [BatchOrder(batch_size, 7, rank, world_size, shuffle) for rank in range(world_size)]
    batches = range(batches_per_epoch(length, batch_size))
    parts = [[order.rows(length, epoch, batch) for order in orders] for batch in batches]
    return tuple(np.array([np.concatenate([part[k] for part in batch]) for batch in parts]) for k in (0, 1))


def test_batches_per_epoch() -> None:
    assert [batches_per_epoch(length, 64) for length in (1, 63, 64, 65, 128)] == [1, 1, 1, 2, 2]


@pytest.mark.parametrize("length", [8, 41, 48, 100, SORTED + 100])
def test_every_sample_counts_once_and_ranks_change_nothing(length: int) -> None:
    batch_size = 8 if length < SORTED else 1000
    indices, weights = epoch_rows(length, batch_size, 1)
    assert sorted(indices[weights > 0]) == list(range(length))
    for world_size in (2, 4, 8):
        shared = epoch_rows(length, batch_size, world_size)
        np.testing.assert_array_equal(shared[0], indices)
        np.testing.assert_array_equal(shared[1], weights)


def test_weighted_mean_over_rows_and_ranks_is_the_mean_over_real_samples() -> None:
    loss = np.random.default_rng(0).random(41)
    indices, weights = epoch_rows(41, 8, 4)
    for rows, weight in zip(indices, weights, strict=True):
        per_rank = [(loss[r] * w).mean() for r, w in zip(np.split(rows, 4), np.split(weight, 4), strict=True)]
        assert np.mean(per_rank) == pytest.approx(loss[rows[weight > 0]].mean())


def test_padding_has_static_size_and_stays_within_the_batch() -> None:
    indices, weights = epoch_rows(41, 8, 2)
    assert indices.shape == weights.shape == (6, 8)
    assert weights.dtype == np.float32 and indices.dtype == np.int64
    assert set(indices[-1]) == {indices[-1][0]}
    np.testing.assert_array_equal(weights[-1], [8, 0, 0, 0, 0, 0, 0, 0])


def test_evaluation_keeps_the_order_of_the_set() -> None:
    indices, weights = epoch_rows(20, 8, 2, shuffle=False)
    assert indices[weights > 0].tolist() == list(range(20))


def test_a_batch_that_ranks_can_not_share() -> None:
    with pytest.raises(DataError, match=r"batch_size=10 .* 4 ranks.*data\.batch_size=8\."):
        check_batch(100, 10, 4, train=True)
    with pytest.raises(DataError, match=r"data\.batch_size=4\."):
        check_batch(100, 2, 4, train=True)


def test_batch_larger_than_the_training_split() -> None:
    with pytest.raises(
        DataError, match=r"larger than the training split, which has 100 samples.*=100 or less"
    ):
        check_batch(100, 128, 2, train=True)
    check_batch(100, 128, 2, train=False)


def test_batch_must_be_positive() -> None:
    with pytest.raises(DataError, match="not a positive number"):
        check_batch(100, 0, 1, train=True)


def sizes_of(indices: np.ndarray) -> np.ndarray:
    return 1.0 + indices % 7


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("sizes", [None, sizes_of])
def test_accumulated_batches_are_the_mean_over_all_their_samples(world_size: int, sizes) -> None:
    """Three batches of 8 on any number of ranks, the last of them not whole, as one of 24 on one rank."""
    loss = np.random.default_rng(0).random(45)
    for step in range(2):
        means = []
        for rank in range(world_size):
            order = BatchOrder(8, 7, rank, world_size, train=True, accumulate=3)
            for batch in range(3 * step, 3 * step + 3):
                rows, weights = order.rows(45, 1, batch, sizes)
                means.append((loss[rows] * weights).mean())
        samples, weights = BatchOrder(24, 7, train=True).rows(45, 1, step, sizes)
        count = np.ones(24) if sizes is None else sizes_of(samples)
        expected = np.average(loss[samples], weights=count * (weights > 0))
        assert np.mean(means) == pytest.approx(expected)
