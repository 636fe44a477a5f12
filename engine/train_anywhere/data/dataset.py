"""The interface of a data set in any framework: a length and `read`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from train_anywhere.errors import DataError

Arrays = tuple[np.ndarray, ...] | Mapping[str, np.ndarray]
"""Rows: arrays of any dtype and shape, each [n, ...]."""


@runtime_checkable
class DataSet(Protocol):
    """Rows that are read by index; `read` must be safe in several threads and in forked workers."""

    def __len__(self) -> int: ...

    def read(self, indices: np.ndarray, epoch: int, train: bool) -> Arrays:
        """Return the rows of `indices` (int64 [n]).

        With `train`, rows may be augmented at random, but equally for the same (seed, epoch, index).
        Raises DataError with the name of the file if a row can't be read.
        """
        ...


@dataclass(frozen=True)
class Splits:
    """The train, validation and test splits of a data set.

    Attributes:
        train, val, test: a `DataSet` each, or another object that `data._target_` returned; test may be missing.
        facts: properties of the data, such as `shape` and `outputs`, for the arguments in `from_data` of a model. The speed of
            training counts `unit`, such as "tokens", of which a row has `units_per_row` (by default 1 and "samples"). Files of
            predictions use `class_names` (a list) and `row_names` (a function for each split that returns the names of its rows).
        notes: lines that rank 0 prints once.
    """

    train: Any
    val: Any
    test: Any = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class ModuleLoaders:
    """The target of data=module: the LightningModule's own train_dataloader, val_dataloader and test_dataloader are used."""


def image_splits(train: Any, val: Any, test: Any) -> Splits:
    """Return the splits for three data sets of labelled images.

    `read` returns normalised images float32 [n, H, W, C] and labels int64 [n] from 0 to `classes` - 1. `shape` is (H, W, C).
    """
    facts = {"shape": train.shape, "classes": train.classes, "outputs": train.classes, "unit": "images"}
    return Splits(train, val, test, facts)


@dataclass(frozen=True)
class ArraySet:
    """Images in memory, uint8 [n, H, W, C], read as image * scale + shift, and labels int64 [n]."""

    images: np.ndarray
    labels: np.ndarray
    classes: int
    scale: float
    shift: float

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width, channels."""
        height, width, channels = self.images.shape[1:]
        return height, width, channels

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, indices: np.ndarray, epoch: int, train: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return images and labels as in `image_splits`, without augmentation."""
        images = self.images[indices].astype(np.float32)
        images *= np.float32(self.scale)
        images += np.float32(self.shift)
        return images, self.labels[indices]

    def row_of(self, image: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the row of a new image, uint8 [H, W] or [H, W, C], with the label 0.

        Raises:
            DataError: it has another shape.
        """
        if isinstance(image, str | Path):
            raise DataError(
                f"{image}: this data set is in memory and reads arrays, not files; open the file first."
            )
        pixels = np.asarray(image)
        pixels = pixels[..., np.newaxis] if pixels.ndim == 2 else pixels
        if pixels.shape != self.shape:
            raise DataError(
                f"an image of this model has the shape {self.shape}, not {pixels.shape}: convert it first."
            )
        return pixels.astype(np.float32) * np.float32(self.scale) + np.float32(self.shift), np.int64(0)

    def part(self, rows: np.ndarray) -> "ArraySet":
        """Return a data set of the samples in `rows` (int64 [m])."""
        return ArraySet(self.images[rows], self.labels[rows], self.classes, self.scale, self.shift)


ROWS = 64
"""The most rows that are looked at."""


def check_labels(splits: Splits) -> None:
    """Raise a DataError unless labels are from 0 to the number of classes - 1, if the facts have `classes`."""
    data, classes = splits.train, splits.facts.get("classes")
    if classes is None or not isinstance(data, DataSet) or not len(data):
        return
    rows = data.read(np.arange(min(ROWS, len(data))), 0, False)
    if not isinstance(rows, tuple) or len(rows) != 2:
        raise DataError(f"a row of the data is a {type(rows).__name__}; use a tuple (image, label).")
    images, labels = rows
    counts = labels.dtype.kind in "iu" and labels.ndim == 1
    if not counts or labels.min() < 0 or labels.max() >= classes:
        values = f" from {labels.min()} to {labels.max()}" if labels.dtype.kind in "biuf" else ""
        raise DataError(
            f"labels are {labels.dtype} {list(labels.shape)}{values}; use class numbers: whole numbers (int64) [rows] "
            f"from 0 to {classes - 1}, for {classes} classes. One-hot labels: use labels.argmax(-1)."
        )
    if images.dtype.kind not in "biuf" or len(images) != len(labels):
        raise DataError(
            f"images are {images.dtype} {list(images.shape)} for {len(labels)} labels; use float32 [rows, ...]."
        )
