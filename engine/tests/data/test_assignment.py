import numpy as np
import pytest

from train_anywhere.data.known import check_batch
from train_anywhere.data.order.assignment import BatchOrder, UnpaddedOrder, batches_per_epoch
from train_anywhere.data.order.shuffle import SORTED
from train_anywhere.errors import DataError


def epoch_rows(length: int, batch_size: int, world_size: int, shuffle: bool = True) -> list[list[int]]:
    """Return the rows of each batch of an epoch, the ranks' parts side by side."""
    orders = [
        UnpaddedOrder(BatchOrder(batch_size, 7, rank, world_size, shuffle), drop_last=False)
        for rank in range(world_size)
    ]
    batches = range(orders[0].batches(length))
    return [np.concatenate([one.rows(length, 0, batch) for one in orders]).tolist() for batch in batches]


def test_batches_per_epoch() -> None:
    assert [batches_per_epoch(length, 64) for length in (1, 63, 64, 65, 128)] == [1, 1, 1, 2, 2]


@pytest.mark.parametrize("length", [8, 45, 48, 100, SORTED + 100])
def test_every_sample_counts_once_and_ranks_change_nothing(length: int) -> None:
    batch_size = 8 if length < SORTED else 1000
    alone = epoch_rows(length, batch_size, 1)
    assert sorted(row for batch in alone for row in batch) == list(range(length))
    for world_size in (2, 4):
        assert epoch_rows(length, batch_size, world_size) == alone


def test_evaluation_keeps_the_order_of_the_set() -> None:
    rows = epoch_rows(20, 8, 2, shuffle=False)
    assert [row for batch in rows for row in batch] == list(range(20))


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
