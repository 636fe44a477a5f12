import numpy as np

from train_anywhere.data.dataset import ArraySet

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
