"""What commands without a framework import; a fork server of the tests imports this module, its forks find it done."""

import socket
from importlib import import_module

from src.launch import fork_main
from src.launch.forkserver import ForkServer
from tests import warm

NAMES = (
    "antlr4", "argparse", "difflib", "fnmatch", "getpass", "jinja2.runtime", "yaml",
    "hydra._internal.hydra", "hydra._internal.core_plugins.basic_sweeper", "hydra._internal.core_plugins.basic_launcher",
    "hydra._internal.utils", "hydra.main", "omegaconf", "hydra_plugins.slurm_launcher.launcher", "hydra_plugins.slurm_launcher.sweeper",
    "slurm.launch", "slurm.rules", "src.launch.sweep", "slurm.presets", "slurm.git", "slurm.snapshot", "slurm.show_logs", "slurm.runs",
    "src.config.refusal", "src.runs.resume", "src.launch.local", "src.launch.processes", "src.launch.rank", "src.runs.lock",
    "src.distributed.horovod_install", "src.runs.attempts",
)  # fmt: skip


def load() -> None:
    """Import, let Hydra look for its plugins, and compose once: its parsers cache what they build."""
    for name in NAMES:
        import_module(name)
    from hydra.core.global_hydra import GlobalHydra

    from src.config.compose import compose, quoted

    for words in (["cluster=slurm", "optimizer.lr=1e-3", "cluster.extra=[--a=b]"], ["model=mlp"]):
        compose([quoted(w) for w in words])
    GlobalHydra.instance().clear()


ours, theirs = socket.socketpair()
fork_main.MORE.append(theirs)
warm.join(ForkServer.join(ours))
load()
