"""The drop-in door."""

from typing import Any

import keras

from src.config.schema import Config
from src.data.base import Splits
from src.errors import ConfigError
from src.training.keras.strategies.base import Strategy


def open_dropin(config: Config, strategy: Strategy, splits: Splits, model: keras.Model) -> Any:
    """Not yet."""
    raise ConfigError("a keras.Model is not trained yet.")
