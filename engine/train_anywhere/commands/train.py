"""Train a model: here, or on the cluster that `cluster=` names.

python src/train.py                                   # here, now
python src/train.py cluster=neuron trainer.nodes=4    # submitted; returns at once
python src/train.py --run RUNDIR                      # one rank of a run that exists: what jobs start
"""

import sys
from typing import TYPE_CHECKING, NoReturn

from train_anywhere.config.command.compose import CONFIGS
from train_anywhere.config.environment_values import plain
from train_anywhere.launch.command import complete, exit_code, help_page, run_folder
from train_anywhere.launch.leaving import leave

if TYPE_CHECKING:
    from omegaconf import DictConfig


def main() -> int:
    """Start one rank, or let Hydra compose the configuration and start what it asks for; returns the exit code."""
    if sys.argv[1:2] == ["--run"]:
        from train_anywhere.launch.rank import run_rank  # a submission does without it

        return run_rank(run_folder(sys.argv[2:]))
    import hydra  # a rank does without it

    sys.argv[1:] = complete(sys.argv[1:])
    with help_page(sys.argv[1:]):
        hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="train")(train)()
    return 0


def train(config: "DictConfig") -> None:
    """Train on this machine. Hydra calls this, or with `cluster=` or `-m` one of our launchers (hydra_plugins)."""
    from train_anywhere.launch.local_run import start  # a submission does without it

    sys.exit(exit_code(lambda: start(plain(config), sys.argv[1:])))


def run() -> NoReturn:
    """Run the command and exit with its code; print one message if it is refused."""
    leave(lambda: exit_code(main))
