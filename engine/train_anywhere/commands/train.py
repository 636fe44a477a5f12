"""Train a model here or on a cluster.

python src/train.py                                   # train here
python src/train.py cluster=neuron trainer.nodes=4    # submit a job and return at once
python src/train.py on=neuron trainer.nodes=4         # run the same command on a host of configs/hosts/, over ssh
python src/train.py --run RUNDIR                      # start one rank of an existing run, as jobs do
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from train_anywhere.commands.elsewhere import here_or_there
from train_anywhere.config.command.compose import CONFIGS
from train_anywhere.config.load import to_plain_tree
from train_anywhere.launch import command
from train_anywhere.launch.exits import leave
from train_anywhere.training.preflight import CHECKS

if TYPE_CHECKING:
    from omegaconf import DictConfig

Tree = dict[str, Any]

FULL_ERROR = "HYDRA_FULL_ERROR"
"""The variable by which Hydra raises its errors instead of printing them."""


class Starter:
    """The function that Hydra calls to start a run here. The launchers that Hydra calls in its place read its checks.

    Args:
        checks: what a run asks of its training or program.
        words: the command line for Hydra.
        complete: returns a composed configuration with what no override can set.
    """

    def __init__(
        self, checks: command.Checks, words: Sequence[str], complete: Callable[[Tree], Tree] = dict
    ) -> None:
        self.checks, self.words, self.complete = checks, list(words), complete
        self.typed = sys.argv[1:]
        self.environ = {name: value for name, value in os.environ.items() if name == FULL_ERROR}

    def start_hydra(self) -> None:
        """Let Hydra compose the configuration and start the run or, with `cluster=` or `-m`, call a launcher."""
        import hydra  # a rank does not need it

        os.environ[FULL_ERROR] = "1"
        sys.argv[1:] = self.words
        try:
            hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="train")(self)()
        finally:
            sys.argv[1:] = self.typed  # whose problems a refusal lists

    def __call__(self, config: "DictConfig") -> None:
        """Start a run on this machine, and exit with its code."""
        from train_anywhere.launch.local_run import start  # a submission does not need it

        with self.as_typed():
            sys.exit(
                command.run_command(
                    lambda: start(self.complete(to_plain_tree(config)), self.words, self.checks)
                )
            )

    @contextmanager
    def as_typed(self) -> Iterator[None]:
        """Restore the user's arguments and environment, which a run gets, until it is started or submitted."""
        sys.argv[1:] = self.typed
        os.environ.pop(FULL_ERROR)
        os.environ.update(self.environ)
        try:
            yield
        finally:
            os.environ[FULL_ERROR] = "1"


def main() -> int:
    """Start one rank, or let Hydra compose the configuration and start the run; return the exit code."""
    if sys.argv[1:2] == ["--run"]:
        from train_anywhere.launch.rank import run_rank  # a submission does not need it

        return run_rank(command.parse_run_argument(sys.argv[2:]))
    if sys.argv[1:2] == ["--member"]:  # of a sweep of this machine
        from train_anywhere.launch.processes import run_member

        return run_member(*sys.argv[2:])
    typed = sys.argv[1:]
    sys.argv[1:] = words = command.build_hydra_arguments(typed)
    with command.add_help_comments(typed):
        Starter(CHECKS, words).start_hydra()
    return 0


def run() -> NoReturn:
    """Run the command and exit with its code; print one message if it is refused."""
    leave(lambda: here_or_there("src/train.py", lambda: command.run_command(main)))
