"""Check that a tracker is installed, as `_check_` in configs/loggers, without importing it."""

from importlib.util import find_spec

from train_anywhere.errors import ConfigError


def wandb() -> None:
    """Raise ConfigError unless Weights & Biases is installed."""
    require("wandb", "wandb")


def mlflow() -> None:
    """Raise ConfigError unless MLflow, or its small distribution mlflow-skinny, is installed."""
    require("mlflow", "mlflow-skinny")


def require(package: str, distribution: str) -> None:
    """Raise ConfigError unless the package for the loggers of this name is installed."""
    if find_spec(package) is None:
        raise ConfigError(
            f"loggers={package} needs the package {package}, which this Python does not have; pip install {distribution}."
        )
