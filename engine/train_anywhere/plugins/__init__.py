"""Plugins for Hydra, which accepts only classes defined in hydra_plugins/.

launchers  submit composed configurations as one job (`cluster=...`), or run the members of a sweep on this machine
optuna     searches: choose each member by the results of earlier ones (`search`)
product    all combinations of values; unlike Hydra's sweeper it writes no file and composes each member once

Hydra imports all plugins at each start, so these modules import only Hydra at the top.
"""

from hydra.core.config_store import ConfigStore

__all__ = ["launchers", "optuna", "product", "register"]


def register(module: str) -> None:
    """Register the subclasses in `module` with Hydra."""
    from train_anywhere.config.command.command_line import SEARCH_OPTIONS

    store = ConfigStore.instance().store
    store(group="hydra/launcher", name="slurm", node={"_target_": f"{module}.SlurmLauncher"})
    store(group="hydra/launcher", name="here", node={"_target_": f"{module}.HereLauncher"})
    search = {"_target_": f"{module}.OptunaSweeper", **SEARCH_OPTIONS}
    store(group="hydra/sweeper", name="optuna", node=search)
    store(group="hydra/sweeper", name="product", node={"_target_": f"{module}.ProductSweeper"})
