from pathlib import Path

import numpy as np
import pytest

from src.data.mnist import MEAN, STD, open_mnist, prepare_mnist
from train_anywhere.data.readers.mnist_files import CHECKSUMS
from train_anywhere.errors import DataError

LABELS, IMAGES = "train-labels-idx1-ubyte", "train-images-idx3-ubyte.gz"


def test_splits_are_disjoint_and_complete(mnist_dir: Path) -> None:
    splits = open_mnist(str(mnist_dir), download=False)
    assert (len(splits.train), len(splits.val), len(splits.test)) == (110, 10, 20)
    images = [image.tobytes() for part in (splits.train, splits.val) for image in part.images]
    assert len(set(images)) == 120
    assert splits.train.shape == (28, 28, 1) and splits.train.classes == 10


def test_images_belong_to_their_labels_and_are_normalised(mnist_dir: Path) -> None:
    test = open_mnist(str(mnist_dir), download=False).test
    images, labels = test.read(np.arange(20), epoch=0, train=False)
    assert labels.tolist() == [i % 10 for i in range(20)]
    np.testing.assert_allclose(images, (test.images / 255 - MEAN) / STD, rtol=1e-5, atol=1e-5)


def test_missing_files_are_named_with_where_they_belong(mnist_dir: Path) -> None:
    raw = mnist_dir / "MNIST" / "raw"
    (raw / IMAGES).unlink()
    (raw / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError) as caught:
        open_mnist(str(mnist_dir), download=False)
    message = str(caught.value)
    assert IMAGES in message and "t10k-labels-idx1-ubyte.gz" in message and str(raw) in message
    assert LABELS not in message and "data.download=true" in message and "\n" not in message


def test_all_four_are_named_when_no_mirror_answers(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        prepare_mnist(tmp_path / "raw", download=True, mirrors=("http://127.0.0.1:9/",))
    assert all(name in str(caught.value) for name in CHECKSUMS)
    assert "http://127.0.0.1:9/ failed" in str(caught.value) and "\n" not in str(caught.value)


def test_more_labels_than_images(mnist_dir: Path, write_idx) -> None:
    write_idx(mnist_dir / "MNIST" / "raw" / LABELS, np.zeros(121, np.uint8))
    with pytest.raises(DataError, match=rf"{IMAGES} has 120 images but {LABELS} next to it has 121 labels"):
        open_mnist(str(mnist_dir), download=False)


def test_label_out_of_range(mnist_dir: Path, write_idx) -> None:
    labels = np.zeros(120, np.uint8)
    labels[17] = 11
    write_idx(mnist_dir / "MNIST" / "raw" / LABELS, labels)
    with pytest.raises(DataError, match=rf"{LABELS} .*sample 17 is labelled 11.* from 0 to 9"):
        open_mnist(str(mnist_dir), download=False)


def test_parts_of_different_size(mnist_dir: Path, write_idx) -> None:
    write_idx(mnist_dir / "MNIST" / "raw" / "t10k-images-idx3-ubyte.gz", np.zeros((20, 14, 14), np.uint8))
    with pytest.raises(DataError, match=r"differ in size \(28x28 and 14x14\)"):
        open_mnist(str(mnist_dir), download=False)


@pytest.mark.parametrize("length", [0, 1])
def test_too_few_images_to_split(mnist_dir: Path, write_idx, length: int) -> None:
    raw = mnist_dir / "MNIST" / "raw"
    write_idx(raw / IMAGES, np.zeros((length, 28, 28), np.uint8))
    write_idx(raw / LABELS, np.zeros(length, np.uint8))
    with pytest.raises(DataError, match=IMAGES):
        open_mnist(str(mnist_dir), download=False)
