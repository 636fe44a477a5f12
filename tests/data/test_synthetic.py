import numpy as np
import pytest

from src.data.synthetic import POOL_BYTES, SyntheticSet, open_synthetic


@pytest.mark.parametrize("shape", [(8, 8, 1), (224, 224, 3), (5, 9, 4)])
def test_any_shape(shape: tuple[int, int, int]) -> None:
    images, labels = SyntheticSet(shape, 12, 1000).read(np.array([0, 999]), epoch=0, train=True)
    assert images.shape == (2, *shape) and images.dtype == np.float32 and labels.dtype == np.int64


def test_lengths_and_labels() -> None:
    splits = open_synthetic(8, 8, 1, classes=12, length=1000, val_length=30)
    assert (len(splits.train), len(splits.val), len(splits.test)) == (1000, 30, 30)
    labels = splits.train.read(np.arange(1000), 0, True)[1]
    assert set(labels) == set(range(12))


def test_memory_is_bounded_whatever_the_shape() -> None:
    assert SyntheticSet((512, 512, 3), 1000, 10**9).images.nbytes <= POOL_BYTES
    assert len(SyntheticSet((5000, 5000, 1), 10, 10).images) == 1


def test_same_samples_every_time_and_no_caller_can_change_them() -> None:
    first, again = SyntheticSet((8, 8, 1), 10, 100), SyntheticSet((8, 8, 1), 10, 100)
    images, _ = first.read(np.arange(10), 0, True)
    images_before = images.copy()
    images[:] = 0
    np.testing.assert_array_equal(again.read(np.arange(10), 3, False)[0], images_before)
    np.testing.assert_array_equal(first.read(np.arange(10), 3, False)[0], images_before)


def test_classes_can_be_distinguished() -> None:
    data = SyntheticSet((8, 8, 1), 10, 256)
    images, labels = data.read(np.arange(256), 0, True)
    flat = images.reshape(256, -1)
    means = np.array([flat[labels == c].mean(axis=0) for c in range(10)])
    nearest = ((flat[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == labels).mean() > 0.9
