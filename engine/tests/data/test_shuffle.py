"""An epoch's order: every sample once, as random as a sorted one, the same in a later version; which rank reads what."""

import numpy as np
import pytest

from train_anywhere.data.dataset import ArraySet
from train_anywhere.data.order.shuffle import BLOCK, SORTED, permutation, shuffled_rows

LARGE = 200_003  # a prime: no two like factors have it as their product


def whole(length: int, seed: int, epoch: int) -> np.ndarray:
    return shuffled_rows(length, seed, epoch, 0, length)


@pytest.mark.parametrize("length", [1, 2, SORTED, SORTED + 1, 450**2, 450**2 + 1, LARGE])
def test_every_sample_has_one_place(length: int) -> None:
    np.testing.assert_array_equal(np.sort(whole(length, 5, 2)), np.arange(length))


@pytest.mark.parametrize("length", [50, LARGE])
def test_any_part_is_that_of_the_whole(length: int) -> None:
    order = whole(length, 5, 2)
    assert order.dtype == np.int64
    edges = [0, 1, 7, 49, 50, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK, length - 1, length]
    parts = [(start, stop) for start in edges for stop in edges if start <= stop <= length]
    for start, stop in parts:
        np.testing.assert_array_equal(shuffled_rows(length, 5, 2, start, stop), order[start:stop])


@pytest.mark.parametrize("length", [50, LARGE])
def test_seed_and_epoch_change_the_order(length: int) -> None:
    orders = {tuple(whole(length, seed, epoch)[:50]) for seed in (0, 1, 2) for epoch in (0, 1, 2)}
    assert len(orders) == 9


def chi_square(counts: np.ndarray) -> float:
    """How far counts that should be alike are from that, in standard deviations of what chance does."""
    expected = counts.sum() / counts.size
    freedom = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))


def unevenness(order: np.ndarray) -> dict[str, float]:
    """Of places with samples, of neighbours, and of both with what remains of a division, in standard deviations."""
    length, parts = len(order), 32

    def together(one: np.ndarray, other: np.ndarray) -> float:
        return chi_square(np.bincount(one * parts + other, minlength=parts * parts))

    place, sample = np.arange(length) * parts // length, order * parts // length
    apart = (order[1:] - order[:-1]) % length * parts // length
    return {
        "places": together(place, sample),
        "neighbours": together(sample[:-1], sample[1:]),
        "far neighbours": together(sample[:-BLOCK], sample[BLOCK:]),
        "differences": together(apart[:-1], apart[1:]),
        "last digits": together(np.arange(length) % parts, order % parts),
        "last digits of neighbours": together(order[:-1] % parts, order[1:] % parts),
    }


@pytest.mark.parametrize("length", [LARGE, 450**2, 1_281_167])
@pytest.mark.quick("200003", "202500")
def test_a_large_set_is_mixed_as_well_as_by_sorting(length: int) -> None:
    """Six standard deviations: chance goes there once in ten million; places and samples that are each used once stay below."""
    for seed in range(3):
        assert max(unevenness(whole(length, seed, 0)).values()) < 6
        assert max(unevenness(permutation(length, seed, 0)).values()) < 6
    assert max(unevenness(np.arange(length)).values()) > 1000


@pytest.mark.parametrize("epochs", [(0, 1), (1, 2), (7, 8)])
def test_one_epoch_says_nothing_of_the_next(epochs: tuple[int, int]) -> None:
    one, other = (np.argsort(whole(LARGE, 3, epoch)) * 32 // LARGE for epoch in epochs)
    assert chi_square(np.bincount(one * 32 + other, minlength=1024)) < 6


def test_the_order_is_the_same_with_every_numpy_version() -> None:
    # Raw PCG64 output; written down once, must never change: a resumed run relies on it.
    assert permutation(10, 1, 0).tolist() == [9, 2, 4, 7, 5, 0, 8, 6, 3, 1]
    assert shuffled_rows(LARGE, 1, 0, BLOCK - 3, BLOCK + 3).tolist() == [
        102717,
        13452,
        65721,
        60514,
        125012,
        76699,
    ]


def test_the_permutation_can_not_be_spoiled_by_a_caller() -> None:
    with pytest.raises(ValueError, match="read-only"):
        permutation(10, 0, 0)[0] = 1
    shuffled_rows(10, 0, 0, 0, 10)[0] = 77
    assert shuffled_rows(10, 0, 0, 0, 10)[0] != 77


IMAGES = np.arange(5 * 2 * 3 * 1, dtype=np.uint8).reshape(5, 2, 3, 1)
ARRAY_SET = ArraySet(IMAGES, np.arange(5, dtype=np.int64), classes=5, scale=0.5, shift=-1.0)


def test_read_normalises_and_keeps_the_order_of_the_indices() -> None:
    images, labels = ARRAY_SET.read(np.array([3, 0, 3]), epoch=0, train=True)
    assert images.dtype == np.float32 and images.shape == (3, *ARRAY_SET.shape) == (3, 2, 3, 1)
    np.testing.assert_array_equal(images, IMAGES[[3, 0, 3]] * 0.5 - 1)
    assert labels.tolist() == [3, 0, 3] and labels.dtype == np.int64


def test_part_is_a_set_of_its_own() -> None:
    part = ARRAY_SET.part(np.array([4, 1]))
    assert len(part) == 2 and part.labels.tolist() == [4, 1] and part.shape == ARRAY_SET.shape
