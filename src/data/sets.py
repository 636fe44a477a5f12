"""From the `data` part of the configuration to the three splits of a data set."""

from src.data.base import Splits
from src.data.digits import open_digits
from src.data.synthetic import open_synthetic
from src.schema import Data, DigitsData, SyntheticData


def open_splits(config: Data, seed: int = 0) -> Splits:
    """Open the data set that `config` names; `seed` is the run's, and only decides random augmentation.

    Raises DataError when files are missing or do not fit together; a damaged image is found when it is read.
    """
    match config:
        case DigitsData():
            return open_digits()
        case SyntheticData(height=height, width=width, channels=channels):
            return open_synthetic((height, width, channels), config.classes, config.length, config.val_length)
    raise NotImplementedError(config.name)
