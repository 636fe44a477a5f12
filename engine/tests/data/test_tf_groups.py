"""Several small batches read in one call: what comes out is what comes out of one call for each."""

import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from engine.tests.properties.cases import bounded
from train_anywhere.data.order.assignment import BatchOrder
from train_anywhere.data.order.prefetch import MAX_BATCHES
from train_anywhere.data.tf import groups
from train_anywhere.data.tf.groups import group_size, read_group
from train_anywhere.data.tf.pipeline import Samples, plain_data_errors
from train_anywhere.data.tf.unpadded_batches import evaluation_batches, training_batches
from train_anywhere.errors import DataError


class Numbers:
    """Rows that tell their index and epoch; one may be damaged."""

    def __init__(self, length: int, damaged: int | None = None) -> None:
        self.length, self.damaged = length, damaged

    def __len__(self) -> int:
        return self.length

    def read(self, indices: np.ndarray, epoch: int, train: bool) -> dict[str, np.ndarray]:
        if train and self.damaged in indices and epoch:  # not when the first and the last row are looked at
            raise DataError(f"row {self.damaged} can't be read.")
        return {"row": indices, "more": np.outer(indices, [1.0, epoch]).astype(np.float32)}


def read_all(dataset: tf.data.Dataset, most: int) -> Iterator[Any]:
    """The bytes of each batch, and the sentence of the error that ends them."""
    try:
        with plain_data_errors():
            for batch in dataset.take(most).as_numpy_iterator():
                yield [(array.dtype, array.shape, array.tobytes()) for array in tf.nest.flatten(batch)]
    except DataError as error:
        yield str(error)


@st.composite
def orders(draw: st.DrawFn) -> tuple[Numbers, BatchOrder, dict[str, Any]]:
    """A data set, the order of one of its ranks, and where in it to begin."""
    world_size = draw(st.integers(1, 3))
    batch_size = world_size * draw(st.integers(1, 3))
    length = draw(st.integers(batch_size, 30))
    per_epoch = draw(st.integers(1, length // batch_size))
    order = BatchOrder(batch_size, 3, draw(st.integers(0, world_size - 1)), world_size, True)
    where = {
        "start_epoch": draw(st.integers(0, 1)),
        "start_batch": draw(st.integers(0, per_epoch - 1)),
        "per_epoch": per_epoch,
    }
    return Numbers(length, draw(st.none() | st.integers(0, length - 1))), order, where


@bounded(15)
@given(orders(), st.integers(2, 7))
def test_the_same_batches_and_the_same_end(
    case: tuple[Numbers, BatchOrder, dict[str, Any]], most: int
) -> None:
    dataset, order, where = case
    found, kinds = [], []
    for together in (1, most):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(groups, "MAX_BATCHES", together)
            batches = training_batches(dataset, order, workers=0, **where)
            found.append(list(read_all(batches, 40)))
            kinds.append((batches.element_spec, int(batches.cardinality())))
    assert found[0] == found[1] and found[0]
    assert kinds[0] == kinds[1]


def test_so_many_are_read_in_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def counting(*arguments: Any) -> list[np.ndarray]:
        group = read_group(*arguments)
        sizes.append(len(group[0]))
        return group

    monkeypatch.setattr(groups, "read_group", counting)
    monkeypatch.setattr(groups, "MAX_GROUP_S", 10.0)  # however busy the machine is
    list(evaluation_batches(Numbers(200), BatchOrder(2, 0), workers=0, start=0, stop=100))
    assert sizes == [MAX_BATCHES] * 3 + [100 - 3 * MAX_BATCHES]
    sizes.clear()
    list(evaluation_batches(Numbers(200), BatchOrder(2, 0), workers=2, start=0, stop=100))
    assert not sizes


def test_a_damaged_batch_ends_its_group_and_is_the_error_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "MAX_GROUP_S", 10.0)

    def read(number: int) -> list[np.ndarray]:
        if number == 5:
            raise DataError("5 is damaged.")
        return [np.array([number, -number])]

    (group,) = read_group(read, 2, 9)
    assert group.tolist() == [[2, -2], [3, -3], [4, -4]]
    with pytest.raises(DataError, match="5 is damaged"):
        read_group(read, 5, 9)
    assert len(read_group(read, 6, 9)[0]) == 3


def test_no_batch_waits_for_slow_ones_after_it() -> None:
    def read(number: int) -> list[np.ndarray]:
        time.sleep(1.1 * groups.MAX_GROUP_S)
        return [np.zeros(1)]

    assert len(read_group(read, 0, 8)[0]) == 1


def test_groups_are_small() -> None:
    def size(*shape: int | None, dtype: tf.DType = tf.float32) -> int:
        return group_size((tf.TensorSpec(shape, dtype), tf.TensorSpec([8], tf.float32)))

    assert size(8, 32) == MAX_BATCHES
    assert size(64, 4096) == 3  # 1 MiB and a little
    assert size(64, 224, 224, 3) == 1
    assert size(8, None) == size(8, dtype=tf.string) == 1


class Noisy:
    """Each sample is drawn when it is read."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[np.ndarray, float]:
        return np.random.normal(size=2), random.random()


def test_a_drawn_sample_depends_on_seed_epoch_and_index_alone() -> None:
    first, again = Samples(Noisy(), seed=3), Samples(Noisy(), seed=3)
    rows = BatchOrder(4, seed=3, train=True).full_batch(8, 1, 0)
    whole = first.read(rows, 1, True)
    for n, row in enumerate(rows):  # as another rank would read it, or a resumed run
        alone = again.read(np.array([row]), 1, True)
        for one, several in zip(alone, whole, strict=True):
            np.testing.assert_array_equal(one[0], several[n])
    for other in (first.read(rows, 2, True), Samples(Noisy(), seed=4).read(rows, 1, True)):
        assert not np.array_equal(other[0], whole[0])


def test_reading_changes_no_other_random_number() -> None:
    random.seed(5)
    np.random.seed(5)
    expected = random.random(), np.random.random()
    random.seed(5)
    np.random.seed(5)
    Samples(Noisy(), seed=3).read(np.arange(4), 0, True)
    assert (random.random(), np.random.random()) == expected
