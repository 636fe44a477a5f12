"""The engine's launchers and sweepers, registered with Hydra, which accepts only classes defined in hydra_plugins."""

from train_anywhere import plugins
from train_anywhere.plugins import launchers


class SlurmLauncher(launchers.SlurmLauncher):
    """Submit jobs to the cluster that `cluster=` names."""


class HereLauncher(launchers.HereLauncher):
    """Run the members of a sweep on this machine."""


class OptunaSweeper(launchers.OptunaSweeper):
    """Search hyperparameters with Optuna: `hydra/sweeper=optuna`."""


class ProductSweeper(launchers.ProductSweeper):
    """Launch all combinations of a sweep's values."""


plugins.register(__name__)
