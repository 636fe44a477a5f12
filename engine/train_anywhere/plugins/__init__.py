"""Plugins for Hydra, which accepts only classes defined in hydra_plugins/.

anywhere   the launcher of any Hydra program
launchers  one job (`cluster=...`), a sweep over all combinations of values, a search (`search`); each as jobs or on this machine

Hydra imports all plugins at each start, so these modules import only Hydra at the top.
"""

from types import ModuleType

from hydra.core.config_store import ConfigStore

__all__ = ["launchers", "register"]


def register(module: str) -> None:
    """Register the subclasses in `module` with Hydra."""
    from train_anywhere.config.command.command_line import SEARCH_OPTIONS

    store = ConfigStore.instance().store
    store(group="hydra/launcher", name="slurm", node={"_target_": f"{module}.SlurmLauncher"})
    store(group="hydra/launcher", name="here", node={"_target_": f"{module}.HereLauncher"})
    search = {"_target_": f"{module}.OptunaSweeper", **SEARCH_OPTIONS}
    store(group="hydra/sweeper", name="optuna", node=search)
    store(group="hydra/sweeper", name="product", node={"_target_": f"{module}.ProductSweeper"})


def __getattr__(name: str) -> ModuleType:
    """Return `launchers` also for a file in hydra_plugins/ of an earlier version, which `make update` does not change in every project."""
    if name in ("optuna", "product"):
        from train_anywhere.plugins import launchers

        return launchers
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
