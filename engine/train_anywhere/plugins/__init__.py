"""Hydra's plugins. A project registers subclasses of them in hydra_plugins/: Hydra accepts only classes that are defined there.

launchers  `cluster=...`: composed configurations in, one submitted job out; without a cluster, the members of a sweep on this machine
optuna     searches: each member is chosen by the results of those before (`search`)
product    all combinations; unlike Hydra's own it writes no file and composes each member once

Hydra imports every plugin at every start, so only Hydra is imported at the top.
"""

from typing import Any

from hydra.core.config_store import ConfigStore

__all__ = ["launchers", "optuna", "product", "register"]


def register(module: str) -> None:
    """Let Hydra find the subclasses that `module` defines, under the names that `hydra/launcher=` and `hydra/sweeper=` take."""
    store = ConfigStore.instance().store
    options: dict[str, Any] = {
        "n_trials": 20,
        "n_jobs": 1,
        "study_name": None,
        "sampler": "tpe",
        "pruner": "none",
        "params": {},
    }
    store(group="hydra/launcher", name="slurm", node={"_target_": f"{module}.SlurmLauncher"})
    store(group="hydra/launcher", name="here", node={"_target_": f"{module}.HereLauncher"})
    store(group="hydra/sweeper", name="optuna", node={"_target_": f"{module}.OptunaSweeper", **options})
    store(group="hydra/sweeper", name="product", node={"_target_": f"{module}.ProductSweeper"})
