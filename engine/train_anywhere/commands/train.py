"""Train a model here or on a cluster.

python src/train.py                                   # train here
python src/train.py cluster=neuron trainer.nodes=4    # submit a job and return at once
python src/train.py on=neuron trainer.nodes=4         # run the same command on a host of configs/hosts/, over ssh
python src/train.py --run RUNDIR                      # start one rank of an existing run, as jobs do
"""

import sys
from typing import NoReturn

from train_anywhere.commands.elsewhere import here_or_there
from train_anywhere.config.command.compose import CONFIGS
from train_anywhere.launch.command import (
    add_help_comments,
    parse_run_argument,
    read_command_line,
    run_command,
)
from train_anywhere.launch.exits import leave
from train_anywhere.training.preflight import CHECKS


def main() -> int:
    """Start one rank, or what the command line asks for; return the exit code."""
    if sys.argv[1:2] == ["--run"]:
        from train_anywhere.launch.rank import run_rank  # a submission does not need it

        return run_rank(parse_run_argument(sys.argv[2:]))
    if sys.argv[1:2] == ["--member"]:  # of a sweep of this machine
        from train_anywhere.launch.processes import run_member

        return run_member(*sys.argv[2:])
    typed = sys.argv[1:]
    line = read_command_line(typed)
    sys.argv[1:] = [*line.overrides, *line.flags]  # a refusal lists all problems of these words
    if {*line.flags} - {"-m", "--multirun"}:
        import hydra  # a run does not need it

        with add_help_comments(typed):
            hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="train")(lambda _: None)()
        return 0
    from train_anywhere.commands.start_runs import start_runs  # a rank does not need it

    return start_runs(line.overrides, bool(line.flags), CHECKS)


def run() -> NoReturn:
    """Run the command and exit with its code; print one message if it is refused."""
    leave(lambda: here_or_there("src/train.py", lambda: run_command(main)))
