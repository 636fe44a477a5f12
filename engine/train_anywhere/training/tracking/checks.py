"""Whether the package of a tracker is there: the functions that `_check_` names in configs/loggers. They import none of them."""

from importlib.util import find_spec

from train_anywhere.errors import ConfigError


def wandb() -> None:
    """Raise ConfigError unless Weights & Biases is installed."""
    require("wandb", "wandb", "wandb")


def mlflow() -> None:
    """Raise ConfigError unless MLflow is installed; its small package is enough."""
    require("mlflow", "mlflow", "mlflow-skinny")


def require(name: str, package: str, distribution: str) -> None:
    """Raise ConfigError unless this Python has the package.

    Args:
        name: choice of `loggers`.
        package: as it is imported.
        distribution: as it is installed.
    """
    if find_spec(package) is None:
        raise ConfigError(
            f"loggers={name} needs the package {package}, which this Python does not have; pip install {distribution}."
        )
