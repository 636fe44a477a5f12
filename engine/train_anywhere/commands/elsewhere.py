"""`on=NAME` of a command: it runs on that host."""

import sys
from collections.abc import Callable

from train_anywhere.launch.command import run_command


def here_or_there(start: str, command: Callable[[], int]) -> int:
    """Run `python start` on the host that `on=` among the arguments names, else `command`; return the exit code."""

    def run() -> int:
        if any(word.startswith("on=") for word in sys.argv[1:]):
            from train_anywhere.remote.remote_command import run_elsewhere  # a command here does not need it

            if (code := run_elsewhere(start, sys.argv[1:])) is not None:
                return code
        return command()

    return run_command(run, overrides=False)
