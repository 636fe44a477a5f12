"""Imports of commands without a framework, for a fork server of the tests."""

from importlib import import_module

from tools.testing import composing, warm
from train_anywhere.launch import fork_main
from train_anywhere.launch.forkserver import ForkServer

NAMES = (
    "antlr4", "argparse", "difflib", "fnmatch", "getpass", "jinja2.runtime", "yaml",
    "hydra._internal.hydra", "hydra._internal.core_plugins.basic_sweeper", "hydra._internal.core_plugins.basic_launcher",
    "hydra._internal.utils", "hydra.main", "omegaconf", "hydra_plugins.slurm_launcher",
    *(
        f"train_anywhere.{name}"
        for name in (
            "slurm.submission.prepare", "slurm.rules", "slurm.presets",
            "runs.provenance", "slurm.submission.snapshot", "slurm.status.show_logs",
            "slurm.status.find_runs", "config.command.diagnose", "runs.reopen.resume", "launch.local_run",
            "launch.processes", "launch.rank", "runs.lock", "distributed.packages",
            "runs.attempts", "features",
        )
    ),
)  # fmt: skip


def load() -> None:
    """Import the modules, let Hydra find its plugins, and compose once for its caches."""
    for name in NAMES:
        import_module(name)
    composing.remember_files()
    from hydra.core.global_hydra import GlobalHydra

    from train_anywhere.config.command.compose import compose, quote_value

    for words in (["cluster=slurm", "optimizer.lr=1e-3", "cluster.extra=[--a=b]"], ["model=mlp"]):
        compose([quote_value(w) for w in words])
    GlobalHydra.instance().clear()


class Server(ForkServer):
    """The server that this process is, for its forks. It has imported all that it imports."""

    def __init__(self, address: bytes) -> None:
        self._address = address


load()
warm.join(Server(fork_main.LISTENER[0].getsockname()))
