"""From the `data` part of the configuration to the three splits of a data set."""

from pathlib import Path

from src.config.choices import Data, DigitsData, ImageFolderData, MnistData, SyntheticData
from src.config.paths import here
from src.data.base import Splits
from src.data.digits import open_digits
from src.data.imagefolder import open_imagefolder
from src.data.mnist import open_mnist
from src.data.synthetic import open_synthetic


def open_splits(config: Data, seed: int = 0) -> Splits:
    """Open the data set that `config` names; `seed` is the run's, and only affects random augmentation.

    Raises DataError if files are missing or do not fit together; a damaged picture is found when it is read.
    """
    match config:
        case DigitsData():
            return open_digits()
        case MnistData():
            return open_mnist(Path(here(config.dir)), config.download)
        case ImageFolderData():
            return open_imagefolder(Path(here(config.dir)), config.image_size, config.channels, seed)
        case SyntheticData():
            shape = (config.height, config.width, config.channels)
            return open_synthetic(shape, config.classes, config.length, config.val_length)
