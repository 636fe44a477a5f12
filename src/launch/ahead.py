"""What is known of a run before it starts: whether its data is there and its checkpoints can be read, and whether batches and model fit.

Only what is cheap to learn, by names and headers: a damaged picture is found when it is read.
"""

import itertools
import math
from pathlib import Path

from src.checkpoints.usable import refuse_unreadable
from src.config.choices import (
    CnnModel,
    Data,
    DigitsData,
    ImageFolderData,
    MlpModel,
    MnistData,
    Model,
    SyntheticData,
)
from src.config.folders import unwritable
from src.config.paths import here
from src.config.schema import Config
from src.data.batch import too_large
from src.data.class_folders import class_folders
from src.data.mnist_files import missing, raw, train_length
from src.errors import ConfigError, DataError
from src.runs.folder import RunDir
from src.training.plan import make_plan

DIGITS = 1259
"""Training images of digits."""

LARGEST = 2**31
"""Numbers in one rank's batch, and weights of one layer: 8 GiB."""


def refuse_unreadable_run(run: RunDir, config: Config) -> None:
    """Where a run is to be resumed and not started from scratch: its checkpoints, looked at quickly.

    Raises:
        CheckpointError: none of them can be read.
    """
    if not config.from_scratch:
        refuse_unreadable(run)


def data_problems(config: Config, devices: int, look: bool = True) -> list[str]:
    """One sentence for each reason why no training could begin.

    Args:
        devices: over all nodes.
        look: whether the data's folder is one of this machine.
    """
    try:
        length = samples(config.data, look)
    except DataError as error:
        return [str(error)]
    except OSError as error:  # a path that can't be one
        return [f"data.dir={error.filename} can't be used ({error.strerror}); use data.dir=FOLDER."]
    sentences = [too_large(length, config.data.batch_size, devices)] if length else []
    sentences += [_too_much_memory(config.data, devices), _no_such_model(config.model, config.data)]
    found = [s for s in sentences if s]
    if length and not found and config.data.batch_size % devices == 0:
        found += _no_step(config, length, devices)
    return found


def samples(data: Data, look: bool) -> int | None:
    """How many there are to train on, where that is known without reading them; `look` for files.

    Raises:
        DataError: they are missing, or their headers are not theirs.
    """
    match data:
        case DigitsData():
            return DIGITS
        case SyntheticData():
            return data.length
        case MnistData() if look:
            return _mnist(raw(Path(here(data.dir))), data.download)
        case ImageFolderData() if look:
            for split in ("train", "val"):
                class_folders(Path(here(data.dir)) / split)
    return None


def _mnist(folder: Path, download: bool) -> int | None:
    if not (download and missing(folder)):
        return train_length(folder)
    if words := unwritable(folder):
        raise DataError(f"data.dir: MNIST is to be fetched into {folder}, but {words}; use data.dir=FOLDER.")
    return None


def shape(data: Data) -> tuple[int, int, int]:
    """Height, width and channels of an image."""
    match data:
        case SyntheticData():
            return data.height, data.width, data.channels
        case ImageFolderData():
            return data.image_size, data.image_size, data.channels
        case MnistData():
            return 28, 28, 1
        case DigitsData():
            return 8, 8, 1


def _too_much_memory(data: Data, devices: int) -> str:
    image = math.prod(shape(data))
    most = LARGEST * devices // image
    if data.batch_size <= most:
        return ""
    return (
        f"data.batch_size={data.batch_size} of {image:,} numbers each do not fit the memory of {devices} ranks; "
        f"use data.batch_size={max(1, most)} or less."
    )


def _no_such_model(model: Model, data: Data) -> str:
    height, width, channels = shape(data)
    match model:
        case CnnModel():
            if min(height, width) < 2:
                return f"model=cnn halves an image, and of {height}x{width} pixels nothing is left; use model=mlp or larger images."
            key, largest = f"model.width={model.width}", 2 * model.width * (height // 2) * (width // 2) * 128
        case MlpModel():
            sizes = [height * width * channels, *model.hidden]
            key = f"model.hidden={model.hidden}"
            largest = max(a * b for a, b in itertools.pairwise(sizes))
        case _:
            return ""
    if largest <= LARGEST:
        return ""
    return f"{key} with images of {height}x{width}x{channels} is a layer of {largest:,} weights, more than memory; use less."


def _no_step(config: Config, length: int, devices: int) -> list[str]:
    try:
        make_plan(config, length, 0, 0, devices)
    except ConfigError as error:
        return error.problems
    return []
