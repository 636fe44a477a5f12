"""imagefolder: pictures in the layout of ImageNet, `train/<class>/*.jpeg` and `val/<class>/*.jpeg`."""

import os
import struct
from pathlib import Path
from typing import Literal

import numpy as np

from src.config.choices import Side
from src.config.paths import AbsoluteFolder, here
from src.data.base import Splits, Staged, as_it_is, image_splits
from src.data.class_folders import class_folders
from src.data.transforms import prepare
from src.errors import DataError

EXTENSIONS = (".jpeg", ".jpg", ".png", ".bmp", ".webp")
"""Upper case too (ImageNet's are .JPEG); other files are ignored."""

DAMAGED = (OSError, SyntaxError, ValueError, EOFError, struct.error)
"""What Pillow raises for damaged files, depending on the format."""


class ImageFolder:
    """One split: the pictures below `folder`, whose sub-folders are the classes, in alphabetical order.

    The folder is listed once; pictures are opened only when read. Augmentation depends on nothing but
    (seed, epoch, index), so it is the same with any number of ranks or workers and after resuming.
    """

    def __init__(self, folder: Path, class_names: list[str], size: int, channels: int, seed: int) -> None:
        files = [_pictures(folder / name) for name in class_names]
        self.folder, self.class_names = folder, class_names
        self.classes, self.shape, self.seed = len(class_names), (size, size, channels), seed
        self.labels = np.repeat(np.arange(len(files), dtype=np.int64), [len(names) for names in files])
        # An array of bytes: a list of a million strings would be copied into each worker by reference counting.
        self.names = np.array([name for names in files for name in names], dtype=np.bytes_)

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, index: int) -> Path:
        """The file of a sample."""
        return self.folder / self.class_names[int(self.labels[index])] / os.fsdecode(self.names[index])

    def read(self, indices: np.ndarray, epoch: int, train: bool) -> tuple[np.ndarray, np.ndarray]:
        """See ImageSet."""
        images = np.empty((len(indices), *self.shape), dtype=np.float32)
        for image, index in zip(images, indices.tolist(), strict=True):
            random = np.random.default_rng([self.seed, epoch, index]) if train else None
            image[:] = self._read_one(index, random)
        return images, self.labels[indices]

    def _read_one(self, index: int, random: np.random.Generator | None) -> np.ndarray:
        from PIL import Image

        path = self.path(index)
        try:
            with Image.open(path) as image:
                image.load()  # damage is found here; what `prepare` raises is not the file's fault
        except (*DAMAGED, Image.DecompressionBombError) as error:
            reason = str(error).partition("\n")[0]
            raise DataError(
                f"{path} is not a picture that can be read ({reason}): replace or delete it."
            ) from error
        return prepare(image, self.shape[0], self.shape[2], random)


def open_imagefolder(
    dir: AbsoluteFolder, image_size: Side, channels: Literal[1, 3], seed: int, staged: Staged = as_it_is
) -> Splits:
    """`train` and `val` below the folder `dir`; `test` if it exists, else `val` again.

    Args:
        dir: a folder; or, where it is `staged`, one tar file of it.
        image_size: side of the square crop, in pixels.
        seed: of the random crops.

    Raises:
        DataError: folders are missing, or do not agree in their classes.
    """
    folder, size = staged(Path(here(dir))), image_size
    train = ImageFolder(folder / "train", class_folders(folder / "train"), size, channels, seed)
    val = _held_out(folder / "val", train)
    test = _held_out(folder / "test", train) if (folder / "test").is_dir() else val
    return image_splits(train, val, test)


def _held_out(folder: Path, train: ImageFolder) -> ImageFolder:
    """A split to evaluate on; its classes must be among the trained ones, and keep their labels."""
    unknown = sorted(set(class_folders(folder)) - set(train.class_names))
    if unknown:
        raise DataError(
            f"{folder / unknown[0]} is a class that {train.folder} does not have: "
            "no model can learn it; add training pictures or delete that folder."
        )
    _, size, channels = train.shape
    return ImageFolder(folder, train.class_names, size, channels, train.seed)


def _pictures(folder: Path) -> list[bytes]:
    """File names of one class, sorted: the order of a listing differs between file systems."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.name.lower().endswith(EXTENSIONS))
    except FileNotFoundError:
        return []  # the other splits may lack a class
    if not names:
        raise DataError(
            f"{folder} is a class without pictures ({', '.join(EXTENSIONS)}): add some or delete it."
        )
    return [os.fsencode(name) for name in names]
