import numpy as np
from sklearn.datasets import load_digits

from src.data.digits import open_digits


def test_splits_are_disjoint_and_complete() -> None:
    splits = open_digits()
    parts = [splits.train, splits.val, splits.test]
    assert [len(part) for part in parts] == [1259, 179, 359]
    pixels = np.concatenate([part.images.reshape(len(part), -1) for part in parts])
    expected = load_digits().images.reshape(1797, -1).astype(np.uint8)
    assert sorted(map(bytes, pixels)) == sorted(map(bytes, expected))


def test_images_belong_to_their_labels() -> None:
    bunch = load_digits()
    label_of = {
        image.astype(np.uint8).tobytes(): label
        for image, label in zip(bunch.images, bunch.target, strict=True)
    }
    test = open_digits().test
    assert all(
        label_of[image.tobytes()] == label for image, label in zip(test.images, test.labels, strict=True)
    )


def test_images_are_normalised_and_splits_always_the_same() -> None:
    train = open_digits().train
    images, labels = train.read(np.arange(len(train)), epoch=0, train=True)
    assert images.shape == (1259, 8, 8, 1) and abs(images.mean()) < 0.02 and abs(images.std() - 1) < 0.02
    assert set(labels) == set(range(10)) and train.classes == 10
    np.testing.assert_array_equal(labels, open_digits().train.labels)
