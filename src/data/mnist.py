"""mnist: 70,000 handwritten digits of 28x28 pixels, or other data in the same four files."""

from pathlib import Path

import numpy as np

from train_anywhere.config import AbsoluteFolder, resolve_node_path
from train_anywhere.data import ArraySet, Splits, Staged, as_it_is, fetch, image_splits, permutation
from train_anywhere.data.readers.idx import read_idx
from train_anywhere.data.readers.mnist_files import (
    CHECKSUMS,
    MIRRORS,
    existing_file,
    missing_files,
    missing_message,
    raw_folder,
    refuse_missing,
    validation_length,
)
from train_anywhere.errors import DataError

CLASSES = 10

# Mean and standard deviation of MNIST's training pixels, as fractions of 255.
MEAN, STD = 0.1307, 0.3081


def open_mnist(dir: AbsoluteFolder, download: bool, staged: Staged = as_it_is) -> Splits:
    """Return 55,000 images to train on, 5,000 for val and 10,000 for test.

    The split is always the same; other data are split 11:1 too. With `download`, files missing in `dir`/MNIST/raw are downloaded.
    """
    folder = raw_folder(Path(resolve_node_path(dir)))
    prepare_mnist(folder, download)
    folder = staged(folder)
    everything, test = _open_split(folder, "train"), _open_split(folder, "t10k")
    if everything.shape != test.shape:
        raise DataError(
            f"The images of train-images-idx3-ubyte and t10k-images-idx3-ubyte under {folder} differ in size "
            f"({_size(everything)} and {_size(test)}): put files of one data set there."
        )
    rows = permutation(len(everything), seed=0, epoch=0)
    val = validation_length(len(rows))
    return image_splits(everything.part(rows[val:]), everything.part(rows[:val]), test)


def prepare_mnist(folder: Path, download: bool, mirrors: tuple[str, ...] = MIRRORS) -> None:
    """Download the missing files. Raise DataError if that is not allowed or fails."""
    if not missing_files(folder):
        return
    if not download:
        refuse_missing(folder)
    try:
        fetch(folder, CHECKSUMS, lambda: missing_files(folder), mirrors)
    except DataError as error:
        raise DataError(f"{missing_message(folder)}; downloading them failed: {error}") from error


def _open_split(folder: Path, split: str) -> ArraySet:
    """Read the images and labels of `split`, "train" or "t10k"."""
    image_file, label_file = (
        existing_file(folder / f"{split}-{kind}") for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")
    )
    images, labels = read_idx(image_file, dimensions=3), read_idx(label_file, dimensions=1)
    if len(images) != len(labels):
        raise DataError(
            f"{image_file} has {len(images)} images but {label_file.name} next to it has {len(labels)} labels: "
            "put two files of the same data set there."
        )
    if len(labels) < 2:
        raise DataError(
            f"{image_file} has {len(labels)} images, too few to split: put the original file there."
        )
    if labels.max() >= CLASSES:
        first = int(np.argmax(labels >= CLASSES))
        raise DataError(
            f"{label_file} has a label out of range: sample {first} is labelled {labels[first]}, and labels "
            f"go from 0 to {CLASSES - 1}; put the original file there."
        )
    return ArraySet(images[..., np.newaxis], labels.astype(np.int64), CLASSES, 1 / (255 * STD), -MEAN / STD)


def _size(images: ArraySet) -> str:
    return f"{images.shape[0]}x{images.shape[1]}"
