"""What a data set is, in any framework: a length and `read`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

Arrays = tuple[np.ndarray, ...] | Mapping[str, np.ndarray]
"""Rows: arrays of any dtype and shape, each [n, ...]."""


@runtime_checkable
class DataSet(Protocol):
    """Rows that are read by index; `read` must be safe in several threads and in forked workers.

    A data set whose rows do not weigh the same (texts of different lengths) has one more method, `sizes(indices) -> float64 [n]`: then the
    loss of a row counts by its size, exactly on any number of ranks.
    """

    def __len__(self) -> int: ...

    def read(self, indices: np.ndarray, epoch: int, train: bool) -> Arrays:
        """The rows of `indices` (int64 [n]).

        With `train`, rows may be augmented: randomly, but the same for the same (seed, epoch, index).
        Raises DataError, naming the file, if a row can't be read.
        """
        ...


@dataclass(frozen=True)
class Splits:
    """The parts of a data set.

    Attributes:
        train, val, test: a `DataSet` each, or what else `data._target_` returned; test may be missing.
        facts: what the data set says of itself, for the arguments in `from_data` of a model: its `shape`, its `outputs`. Files of
            predictions use `class_names` (a list) and `row_names` (a function for each split that returns the names of its rows).
        notes: lines that rank 0 prints once.
    """

    train: Any
    val: Any
    test: Any = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class ModuleLoaders:
    """The data of data=module: a LightningModule's own train_dataloader, val_dataloader and test_dataloader."""


class ImageSet(DataSet, Protocol):
    """Labelled images: `read` gives images float32 [n, H, W, C], normalised, and labels int64 [n]."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height and width in pixels, number of channels."""
        ...

    @property
    def classes(self) -> int:
        """Labels are 0 .. classes - 1."""
        ...


def image_splits(train: ImageSet, val: ImageSet, test: ImageSet) -> Splits:
    """Three sets of images that agree in shape and classes."""
    return Splits(
        train, val, test, {"shape": train.shape, "classes": train.classes, "outputs": train.classes}
    )


@dataclass(frozen=True)
class ArraySet:
    """In memory: uint8 images [n, H, W, C], read as image * scale + shift, and labels int64 [n]."""

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
        """See ImageSet; nothing is augmented."""
        images = self.images[indices].astype(np.float32)
        images *= np.float32(self.scale)
        images += np.float32(self.shift)
        return images, self.labels[indices]

    def part(self, rows: np.ndarray) -> "ArraySet":
        """The samples of `rows` (int64 [m]) as a data set of their own."""
        return ArraySet(self.images[rows], self.labels[rows], self.classes, self.scale, self.shift)
