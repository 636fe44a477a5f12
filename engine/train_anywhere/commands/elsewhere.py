"""The arguments of commands that take those of one run, and `on=NAME`, which runs a command on that host."""

import sys
from collections.abc import Callable, Sequence

from train_anywhere.config.command.command_line import split_flags, to_hydra_overrides
from train_anywhere.config.command.compose import CONFIGS, compose
from train_anywhere.config.command.yaml_files import refuse_unusable_files
from train_anywhere.config.load import Check, load
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError
from train_anywhere.files.root import refuse_deleted_folder
from train_anywhere.launch.command import run_command
from train_anywhere.slurm.presets import resolve_current


def here_or_there(start: str, command: Callable[[], int]) -> int:
    """Run `python start` on the host that `on=` among the arguments names, else `command`; return the exit code."""

    def run() -> int:
        if any(word.startswith("on=") for word in sys.argv[1:]):
            from train_anywhere.remote.remote_command import run_elsewhere  # a command here does not need it

            if (code := run_elsewhere(start, sys.argv[1:])) is not None:
                return code
        return command()

    return run_command(run, overrides=False)


def read_request(arguments: Sequence[str], *checks: Check) -> tuple[Config, list[str]]:
    """Return the configuration of one run, and its overrides. Raises ProjectError: lists all problems, also those that the checks find."""
    refuse_deleted_folder()
    refuse_unusable_files(CONFIGS)
    line = split_flags(arguments)
    if line.flags:
        raise ConfigError(
            f"{' '.join(line.flags)}: this command takes key=value of one run only; see --help."
        )
    words = resolve_current(to_hydra_overrides(line.overrides))
    return load(compose(words), *checks), words
