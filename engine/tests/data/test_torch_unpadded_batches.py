"""Batches without padding: every row once, and a row of each batch on every rank."""

import numpy as np
import pytest

from train_anywhere.data.order.assignment import BatchOrder, UnpaddedOrder
from train_anywhere.data.order.shuffle import permutation
from train_anywhere.errors import DataError


def orders(batch_size: int, ranks: int, train: bool) -> list[UnpaddedOrder]:
    return [
        UnpaddedOrder(BatchOrder(batch_size, 3, rank, ranks, train), drop_last=train) for rank in range(ranks)
    ]


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
def test_training_reads_whole_batches_in_our_order(ranks: int) -> None:
    parts = orders(8, ranks, True)
    assert parts[0].batches(37) == 4
    for batch in range(4):
        rows = [part.rows(37, 5, batch) for part in parts]
        assert {len(own) for own in rows} == {8 // ranks}
        wanted = permutation(37, 3, 5)[8 * batch : 8 * batch + 8]
        assert np.concatenate(rows).tolist() == wanted.tolist()


def test_fewer_rows_than_ranks_are_refused() -> None:
    with pytest.raises(DataError, match="an evaluation of 3 rows can't be shared by 4 ranks; use 3 or fewer"):
        orders(8, 4, False)[0].batches(3)
