"""Hydra's plugins of this project. Hydra imports every plugin at every start, so nothing heavy is imported here.

launcher  slurm    composed configurations in, one submitted job out (cluster=... of every preset but local)
          here     the members of a sweep on this machine, one after the other
sweeper   optuna   searches: each member by the results of those before (src/search)
          product  all combinations; unlike Hydra's own it writes no file and composes each member once
"""

from hydra.core.config_store import ConfigStore

_store = ConfigStore.instance()
_here = "hydra_plugins.slurm_launcher"
_store.store(group="hydra/launcher", name="slurm", node={"_target_": f"{_here}.launcher.SlurmLauncher"})
_store.store(group="hydra/launcher", name="here", node={"_target_": f"{_here}.launcher.HereLauncher"})
_store.store(
    group="hydra/sweeper",
    name="optuna",
    node={
        "_target_": f"{_here}.search.OptunaSweeper",
        "n_trials": 20,
        "n_jobs": 1,
        "study_name": None,
        "sampler": "tpe",
        "pruner": "none",
        "params": {},
    },
)
_store.store(group="hydra/sweeper", name="product", node={"_target_": f"{_here}.sweeper.ProductSweeper"})
