"""Map-style data sets as batches for Keras."""

import random

import numpy as np

from train_anywhere.data.order.assignment import BatchOrder
from train_anywhere.data.tf.pipeline import Samples


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
