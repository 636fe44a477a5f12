"""What is known of each data set before a run starts, by names and headers alone: the functions that `_check_` names in configs/data.

They are called where a job is submitted, so neither they nor what they import load numpy or a framework.
"""

import math
from pathlib import Path

from src.data.class_folders import class_folders
from src.data.mnist_files import missing, raw, train_length
from train_anywhere.config import here, unwritable
from train_anywhere.data import Known, is_archive
from train_anywhere.errors import DataError

LARGEST_IMAGE = 2**28
"""Numbers of one synthetic image, or of the means of all classes: 1 GiB."""


LABELS = ("classes", "outputs")
"""What a data set of classes says of itself besides its shape."""


def digits() -> Known:
    """1,797 images, less those to evaluate on."""
    return Known(1259, {"shape": (8, 8, 1)}, later=LABELS)


def mnist(dir: str, download: bool, look: bool) -> Known:
    """The header of the file with training images.

    Args:
        look: whether `dir` is a folder of this machine.

    Raises:
        DataError: files are missing, or their headers are not theirs.
    """
    length = _mnist_length(raw(Path(here(dir))), download) if look else None
    return Known(length, {"shape": (28, 28, 1)}, later=LABELS)


def _mnist_length(folder: Path, download: bool) -> int | None:
    if not (download and missing(folder)):
        return train_length(folder)
    if words := unwritable(folder):
        raise DataError(f"data.dir: MNIST is to be fetched into {folder}, but {words}; use data.dir=FOLDER.")
    return None


def imagefolder(dir: str, image_size: int, channels: int, look: bool, stage: bool) -> Known:
    """That there are classes, or, with `stage`, an archive that each node unpacks; raises DataError."""
    folder = Path(here(dir)) if look else Path()
    packed = look and is_archive(folder)
    if packed and not stage:
        raise DataError(
            f"data.dir={dir} is an archive, which is read once it is unpacked; use data.stage=true."
        )
    for split in ("train", "val") if look and not packed else ():
        class_folders(folder / split)
    return Known(
        None, {"shape": (image_size, image_size, channels)}, later=(*LABELS, "class_names", "row_names")
    )


def synthetic(height: int, width: int, channels: int, classes: int, length: int) -> Known:
    """Whether images and classes of this size fit into memory."""
    sizes = {
        f"data.height={height} data.width={width} data.channels={channels}": math.prod(
            (height, width, channels)
        ),
        f"data.classes={classes} data.height={height} data.channels={channels}": math.prod(
            (classes, height, channels)
        ),
    }
    problems = [
        f"{keys} need {count:,} numbers in memory, and the limit is {LARGEST_IMAGE:,}; use smaller ones."
        for keys, count in sizes.items()
        if count > LARGEST_IMAGE
    ]
    return Known(length, {"shape": (height, width, channels)}, tuple(problems), LABELS)


def friedman(length: int) -> Known:
    """A table of ten columns."""
    return Known(length, {"shape": (10,), "outputs": 1}, later=())
