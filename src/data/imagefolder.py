"""imagefolder: pictures in the layout of ImageNet, such as `train/<class>/*.jpeg`."""

import math
import os
import struct
from collections import Counter
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from src.data.transforms import UnknownPixelsError, prepare_image
from train_anywhere.config import AbsoluteFolder, Range, Side, resolve_node_path
from train_anywhere.data import (
    Splits,
    Staged,
    as_it_is,
    describe,
    image_splits,
    is_hidden,
    left_out,
    permutation,
    walk,
)
from train_anywhere.data.readers.class_folders import class_folders
from train_anywhere.errors import DataError

EXTENSIONS = (
    ".jpeg", ".jpg", ".jfif", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm", ".pbm",
)  # fmt: skip
"""Extensions of pictures, in lower or upper case (ImageNet uses .JPEG); other files are only counted."""

Fraction = Annotated[float, Range(above=0, below=1)]

DAMAGED = (OSError, SyntaxError, ValueError, EOFError, struct.error)
"""Errors that Pillow raises for damaged files, depending on the format."""


class ImageFolder:
    """Pictures of one split, whose classes are the sub-folders in alphabetical order.

    A class may have sub-folders. The folder is listed once; pictures are opened only when read. Augmentation depends only on
    (seed, epoch, index), so it is the same with any number of ranks or workers, and after resuming.
    """

    def __init__(self, folder: Path, class_names: list[str], size: int, channels: int, seed: int) -> None:
        self.left_out: Counter[str] = Counter()
        files = [_list_pictures(folder / name, self.left_out) for name in class_names]
        self.folder, self.class_names = folder, class_names
        self.classes, self.shape, self.seed = len(class_names), (size, size, channels), seed
        self.labels = np.repeat(np.arange(len(files), dtype=np.int64), [len(names) for names in files])
        # An array of bytes: a list of a million strings would be copied into each worker by reference counting.
        self.names = np.array([name for names in files for name in names], dtype=np.bytes_)

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, index: int) -> Path:
        """Return the file of a sample."""
        return self.folder / self.class_names[int(self.labels[index])] / os.fsdecode(self.names[index])

    def row_names(self) -> list[str]:
        """Return the path of each sample's file, relative to the folder of the data set."""
        paths = (self.path(index).relative_to(self.folder.parent) for index in range(len(self)))
        return [os.fsencode(path).decode(errors="backslashreplace") for path in paths]

    def notes(self) -> list[str]:
        """Return a line that counts the files left out, or nothing if all are read."""
        with os.scandir(self.folder) as entries:
            outside = sum(not (is_hidden(e.name) or e.is_dir()) for e in entries)
        if not (counts := self.left_out + Counter({"outside of the class folders": outside})):
            return []
        found = len(np.unique(self.labels))
        return [f"{self.folder}: {len(self):,} pictures in {found:,} classes{describe(counts)}"]

    def read(self, indices: np.ndarray, epoch: int, train: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return images float32 [b, size, size, channels] and labels int64 [b]."""
        images = np.empty((len(indices), *self.shape), dtype=np.float32)
        for image, index in zip(images, indices.tolist(), strict=True):
            random = np.random.default_rng([self.seed, epoch, index]) if train else None
            image[:] = self._read_one(index, random)
        return images, self.labels[indices]

    def row_of(self, item: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the row of a new picture, a file or uint8 [H, W] or [H, W, 3], with label 0."""
        from PIL import Image

        if isinstance(item, str | Path):
            return _read_picture(Path(item), self.shape, None), np.int64(0)
        return _prepare(Image.fromarray(np.asarray(item)), "an array", self.shape, None), np.int64(0)

    def part(self, rows: np.ndarray) -> "ImageFolder":
        """Return the samples of `rows` (int64 [m]) as a data set of their own."""
        chosen = copy(self)
        chosen.labels, chosen.names = self.labels[rows], self.names[rows]
        return chosen

    def _read_one(self, index: int, random: np.random.Generator | None) -> np.ndarray:
        return _read_picture(self.path(index), self.shape, random)


def _read_picture(path: Path, shape: tuple[int, int, int], random: np.random.Generator | None) -> np.ndarray:
    """Return a picture as float32 of `shape`. Raise DataError if it is damaged."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            image.load()  # raises if the file is damaged; errors of `prepare_image` have other causes
    except (*DAMAGED, Image.DecompressionBombError) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(
            f"{path} is not a picture that can be read ({reason}): replace or delete it."
        ) from error
    return _prepare(image, str(path), shape, random)


def _prepare(
    image: Any, name: str, shape: tuple[int, int, int], random: np.random.Generator | None
) -> np.ndarray:
    try:
        return prepare_image(image, shape[0], shape[2], random)
    except UnknownPixelsError as error:
        raise DataError(
            f"{name} has pixels of Pillow's mode {image.mode!r}, which can't be made RGB or grey ({error}): convert it to 8 bits."
        ) from error


def open_imagefolder(
    dir: AbsoluteFolder,
    image_size: Side,
    channels: Literal[1, 3],
    seed: int,
    staged: Staged = as_it_is,
    val_fraction: Fraction | None = None,
    test_fraction: Fraction | None = None,
) -> Splits:
    """Return the splits below the folder `dir`. Without `test`, `val` is used again.

    Args:
        dir: a folder, or with `staged` a tar file of one. With `val_fraction` its sub-folders are the classes.
        val_fraction: share of the pictures to validate on; the split is the same for every seed.
        test_fraction: share of the pictures to test on; None: the validation again.
        image_size: side of the square crop, in pixels.
        channels: 3 for RGB, 1 for grey.
        seed: seed of the random crops.
        staged: copies the folder to the node's disk, or returns it unchanged.

    Raises:
        DataError: folders are missing, or a split has classes that `train` does not have.
    """
    folder, size = staged(Path(resolve_node_path(dir))), image_size
    if val_fraction is not None:
        train, val, test = _random_splits(folder, size, channels, seed, val_fraction, test_fraction)
        return _splits(train, val, test)
    train = ImageFolder(folder / "train", class_folders(folder / "train"), size, channels, seed)
    val = _evaluation_split(folder / "val", train)
    test = _evaluation_split(folder / "test", train) if (folder / "test").is_dir() else val
    return _splits(train, val, test)


def _random_splits(
    folder: Path, size: int, channels: int, seed: int, val_fraction: float, test_fraction: float | None
) -> tuple[ImageFolder, ImageFolder, ImageFolder]:
    """Split one folder of classes. Without `test_fraction` the test is the validation."""
    everything = ImageFolder(folder, class_folders(folder), size, channels, seed)
    rows = permutation(len(everything), seed=0, epoch=0)
    val, test = (math.ceil(len(rows) * fraction) for fraction in (val_fraction, test_fraction or 0.0))
    if val + test >= len(rows):
        raise DataError(
            f"{folder} has {len(rows)} pictures, and {val + test} of them would not be trained on; use smaller fractions."
        )
    held_out = everything.part(rows[:val])
    tested = everything.part(rows[val : val + test]) if test else held_out
    return everything.part(rows[val + test :]), held_out, tested


def _splits(train: ImageFolder, val: ImageFolder, test: ImageFolder) -> Splits:
    splits = image_splits(train, val, test)
    sets = {"train": train, "val": val, "test": test}
    facts = {"class_names": train.class_names, "row_names": {n: one.row_names for n, one in sets.items()}}
    notes = [*dict.fromkeys(line for one in sets.values() for line in one.notes())]
    return replace(splits, facts={**splits.facts, **facts}, notes=tuple(notes))


def _evaluation_split(folder: Path, train: ImageFolder) -> ImageFolder:
    """Return a split with the labels of `train`. Raise DataError for an unknown class."""
    unknown = sorted(set(class_folders(folder)) - set(train.class_names))
    if unknown:
        raise DataError(
            f"{folder / unknown[0]} is a class that {train.folder} does not have, so "
            "no model can learn it: add training pictures or delete that folder."
        )
    _, size, channels = train.shape
    return ImageFolder(folder, train.class_names, size, channels, train.seed)


def _list_pictures(folder: Path, skipped: Counter[str]) -> list[bytes]:
    """Return the paths of a class's pictures, and count other files in `skipped`."""
    if not folder.exists():
        return []  # the other splits may lack a class
    names = []
    for path, kind in walk(str(folder)):
        if kind == "file" and path.lower().endswith(EXTENSIONS):
            names.append(os.fsencode(path[len(str(folder)) + 1 :]))
        else:
            skipped[left_out(path, kind)] += 1
    if not names:
        raise DataError(
            f"{folder} is a class without pictures ({', '.join(EXTENSIONS)}): add some or delete it{describe(skipped)}."
        )
    return names
