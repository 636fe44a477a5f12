"""mnist: 70,000 handwritten digits of 28x28 pixels, or other data in the same four files."""

from pathlib import Path

import numpy as np

from src.data.idx import read_idx
from src.data.mnist_files import (
    CHECKSUMS,
    MIRRORS,
    held_out,
    missing,
    present,
    raw,
    refuse_missing,
    what_to_put,
)
from train_anywhere.config import AbsoluteFolder, here
from train_anywhere.data import ArraySet, Splits, Staged, as_it_is, fetch, image_splits, permutation
from train_anywhere.errors import DataError

CLASSES = 10

# Mean and standard deviation of MNIST's training pixels, as fractions of 255.
MEAN, STD = 0.1307, 0.3081


def open_mnist(dir: AbsoluteFolder, download: bool, staged: Staged = as_it_is) -> Splits:
    """55,000 train, 5,000 val (smaller files are split 11:1 too; the split is always the same), 10,000 test.

    Files missing under `dir`/MNIST/raw are fetched if `download` is true. Raises DataError.
    """
    folder = raw(Path(here(dir)))
    prepare_mnist(folder, download)
    folder = staged(folder)
    everything, test = _open_part(folder, "train"), _open_part(folder, "t10k")
    if everything.shape != test.shape:
        raise DataError(
            f"The images of train-images-idx3-ubyte and t10k-images-idx3-ubyte under {folder} differ in size "
            f"({_size(everything)} and {_size(test)}): put files of one data set there."
        )
    rows = permutation(len(everything), seed=0, epoch=0)
    val = held_out(len(rows))
    return image_splits(everything.part(rows[val:]), everything.part(rows[:val]), test)


def prepare_mnist(folder: Path, download: bool, mirrors: tuple[str, ...] = MIRRORS) -> None:
    """Make sure that the four files are in `folder`; uses no network if they are. Raises DataError."""
    if not missing(folder):
        return
    if not download:
        refuse_missing(folder)
    try:
        fetch(folder, CHECKSUMS, lambda: missing(folder), mirrors)
    except DataError as error:
        raise DataError(f"{what_to_put(folder)}; fetching them failed: {error}") from error


def _open_part(folder: Path, part: str) -> ArraySet:
    """The images and labels of `part` ("train" or "t10k")."""
    image_file, label_file = (
        present(folder / f"{part}-{kind}") for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")
    )
    images, labels = read_idx(image_file, dimensions=3), read_idx(label_file, dimensions=1)
    if len(images) != len(labels):
        raise DataError(
            f"{image_file} holds {len(images)} images but {label_file.name} next to it {len(labels)} labels: "
            "put two files of one data set there."
        )
    if len(labels) < 2:
        raise DataError(
            f"{image_file} holds {len(labels)} images, too few to split: put the original file there."
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
