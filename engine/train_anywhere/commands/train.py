"""Train a model here or on a cluster.

python src/train.py                                   # train here
python src/train.py cluster=neuron trainer.nodes=4    # submit a job and return at once
python src/train.py on=neuron trainer.nodes=4         # run the same command on a host of configs/hosts/, over ssh
python src/train.py --run RUNDIR                      # start one rank of an existing run, as jobs do
"""

import sys
from typing import TYPE_CHECKING, NoReturn

from train_anywhere.commands.elsewhere import here_or_there
from train_anywhere.config.command.compose import CONFIGS
from train_anywhere.config.load import to_plain_tree
from train_anywhere.launch import command
from train_anywhere.launch.exits import leave
from train_anywhere.training.preflight import CHECKS

if TYPE_CHECKING:
    from omegaconf import DictConfig


def main() -> int:
    """Start one rank, or let Hydra compose the configuration and start the run; return the exit code."""
    if sys.argv[1:2] == ["--run"]:
        from train_anywhere.launch.rank import run_rank  # a submission does not need it

        return run_rank(command.parse_run_argument(sys.argv[2:]))
    if sys.argv[1:2] == ["--member"]:  # of a sweep of this machine
        from train_anywhere.launch.processes import run_member

        return run_member(*sys.argv[2:])
    import hydra  # a rank does not need it

    typed = sys.argv[1:]
    sys.argv[1:] = command.build_hydra_arguments(typed)
    with command.add_help_comments(typed):
        hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="train")(train)()
    return 0


def train(config: "DictConfig") -> None:
    """Train on this machine. With `cluster=` or `-m`, Hydra calls a launcher in hydra_plugins instead."""
    from train_anywhere.launch.local_run import start  # a submission does not need it

    sys.exit(command.run_command(lambda: start(to_plain_tree(config), sys.argv[1:], CHECKS)))


def run() -> NoReturn:
    """Run the command and exit with its code; print one message if it is refused."""
    leave(lambda: here_or_there("src/train.py", lambda: command.run_command(main)))
