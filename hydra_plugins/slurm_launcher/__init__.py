"""Registers the engine's launchers and sweepers with Hydra, which accepts only classes that are defined here."""

from train_anywhere import plugins
from train_anywhere.plugins import launchers, optuna, product


class SlurmLauncher(launchers.SlurmLauncher):
    """Submits to the cluster that `cluster=` names."""


class HereLauncher(launchers.HereLauncher):
    """Runs the members of a sweep on this machine."""


class OptunaSweeper(optuna.OptunaSweeper):
    """Searches: `hydra/sweeper=optuna`."""


class ProductSweeper(product.ProductSweeper):
    """Launches all combinations of a sweep's values."""


plugins.register(__name__)
