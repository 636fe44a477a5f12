import hashlib

import numpy as np

from src.data.digits import FILE, open_digits


def test_the_file_is_the_original() -> None:
    """The pixels and labels are those of `load_digits` in scikit-learn 1.9.1."""
    digits = np.load(FILE)
    found = hashlib.sha256(digits["images"].tobytes() + digits["labels"].tobytes()).hexdigest()
    assert found == "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"


def test_splits_are_disjoint_and_complete() -> None:
    splits = open_digits()
    parts = [splits.train, splits.val, splits.test]
    assert [len(part) for part in parts] == [1259, 179, 359]
    pixels = np.concatenate([part.images.reshape(len(part), -1) for part in parts])
    assert sorted(map(bytes, pixels)) == sorted(map(bytes, np.load(FILE)["images"].reshape(1797, -1)))


def test_images_belong_to_their_labels() -> None:
    digits = np.load(FILE)
    label_of = dict(zip(map(bytes, digits["images"]), digits["labels"], strict=True))
    test = open_digits().test
    assert all(label_of[bytes(image)] == label for image, label in zip(test.images, test.labels, strict=True))


def test_images_are_normalised_and_splits_always_the_same() -> None:
    train = open_digits().train
    images, labels = train.read(np.arange(len(train)), epoch=0, train=True)
    assert images.shape == (1259, 8, 8, 1) and abs(images.mean()) < 0.02 and abs(images.std() - 1) < 0.02
    assert set(labels) == set(range(10)) and train.classes == 10
    np.testing.assert_array_equal(labels, open_digits().train.labels)
