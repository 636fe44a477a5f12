"""mnist: 70,000 handwritten digits of 28x28 pixels, or other data in the same four files."""

from pathlib import Path

import numpy as np

from src.data.base import ArraySet, Splits
from src.data.download import MIRRORS, fetch
from src.data.idx import read_idx
from src.data.order import permutation
from src.errors import DataError

CLASSES = 10

# Mean and standard deviation of MNIST's training pixels, as fractions of 255.
MEAN, STD = 0.1307, 0.3081

# The file names and MD5 sums that torchvision.datasets.MNIST uses too.
CHECKSUMS = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}


def open_mnist(data_dir: Path, download: bool) -> Splits:
    """55,000 train, 5,000 val (smaller files are split 11:1 as well, always in the same way), 10,000 test.

    Files that are missing under `data_dir`/MNIST/raw are fetched when `download`. Raises DataError.
    """
    folder = data_dir / "MNIST" / "raw"
    prepare_mnist(folder, download)
    everything, test = _open_part(folder, "train"), _open_part(folder, "t10k")
    if everything.shape != test.shape:
        raise DataError(
            f"The images of train-images-idx3-ubyte and t10k-images-idx3-ubyte under {folder} differ in size "
            f"({_size(everything)} and {_size(test)}): put files of one data set there."
        )
    rows = permutation(len(everything), seed=0, epoch=0)
    val = max(1, len(rows) // 12)
    return Splits(train=everything.part(rows[val:]), val=everything.part(rows[:val]), test=test)


def prepare_mnist(folder: Path, download: bool, mirrors: tuple[str, ...] = MIRRORS) -> None:
    """See that the four files are in `folder`; touches no network when they are. Raises DataError."""
    if not _missing(folder):
        return
    if not download:
        raise DataError(f"{_what_to_put(folder)}, or type data.download=true to fetch them.")
    try:
        fetch(folder, CHECKSUMS, lambda: _missing(folder), mirrors)
    except DataError as error:
        raise DataError(f"{_what_to_put(folder)}; fetching them failed: {error}") from error


def _missing(folder: Path) -> list[str]:
    """Those of the four .gz names that are there neither packed nor unpacked."""
    return [
        name
        for name in CHECKSUMS
        if not (folder / name).exists() and not (folder / name).with_suffix("").exists()
    ]


def _what_to_put(folder: Path) -> str:
    missing = _missing(folder)
    return (
        f"MNIST is not complete: put {', '.join(missing)} (packed, or unpacked without .gz) into "
        f"{folder.absolute()}, copied from a machine that has them or from {MIRRORS[0]}"
    )


def _open_part(folder: Path, part: str) -> ArraySet:
    """The images and labels of `part` ("train" or "t10k")."""
    image_file, label_file = (
        _present(folder / f"{part}-{kind}") for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")
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


def _present(plain: Path) -> Path:
    """The unpacked file where there is one, else the packed one."""
    return plain if plain.exists() else plain.with_name(plain.name + ".gz")


def _size(images: ArraySet) -> str:
    return f"{images.shape[0]}x{images.shape[1]}"
