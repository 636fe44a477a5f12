"""What a data set is, in any framework: a length, a shape, a number of classes, and `read`."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np


class ImageSet(Protocol):
    """Labelled images, read by index; `read` must be safe in several threads and in forked workers."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height and width in pixels, number of channels."""
        ...

    @property
    def classes(self) -> int:
        """Labels are 0 .. classes - 1."""
        ...

    def __len__(self) -> int: ...

    def read(self, indices: np.ndarray, epoch: int, train: bool) -> tuple[np.ndarray, np.ndarray]:
        """Images float32 [n, H, W, C], normalised, and labels int64 [n].

        With `train`, images may be augmented: randomly, but the same for the same (seed, epoch, index).
        Raises DataError, naming the file, if a sample can't be read.
        """
        ...


@dataclass(frozen=True)
class Splits:
    """The three parts of a data set; they agree in shape and classes."""

    train: ImageSet
    val: ImageSet
    test: ImageSet


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
        """See ImageSet.read; nothing is augmented."""
        images = self.images[indices].astype(np.float32)
        images *= np.float32(self.scale)
        images += np.float32(self.shift)
        return images, self.labels[indices]

    def part(self, rows: np.ndarray) -> "ArraySet":
        """The samples of `rows` (int64 [m]) as a data set of their own."""
        return ArraySet(self.images[rows], self.labels[rows], self.classes, self.scale, self.shift)
