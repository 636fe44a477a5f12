"""Around `src/train.py`: the command line that Hydra gets, and the exit code with one message for what went wrong."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from io import StringIO

from train_anywhere.config.command.command_line import here, opened, split
from train_anywhere.config.command.compose import CONFIGS, complete_choices, quoted
from train_anywhere.config.command.explained import explained
from train_anywhere.config.command.refusal import refusal
from train_anywhere.config.command.yaml_files import refuse_unusable
from train_anywhere.errors import INTERRUPTED, REFUSED, ConfigError, ProjectError
from train_anywhere.files.terminal.output import escape_characters, trouble
from train_anywhere.files.terminal.printable import printable
from train_anywhere.runs.reopen.resume import saved_overrides


def complete(arguments: Sequence[str]) -> list[str]:
    """The command line for Hydra: first what made the run that `resume=` names, then what was typed, quoted as Hydra reads it.

    Raises:
        ConfigError: for a flag that does not exist, or a file below configs/ that Hydra could not read.
        CheckpointError: where `resume=` names no run folder, or a damaged one.
    """
    here()
    refuse_unusable(CONFIGS)
    complete_choices()
    line = split(arguments)
    words = [quoted(word) for word in opened([*saved_overrides(line.overrides), *line.overrides])]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises its errors instead of printing them
    return [*words, *line.flags]


@contextmanager
def help_page(arguments: Sequence[str]) -> Iterator[None]:
    """Where help is asked for, what Hydra prints gets the comments of the configuration."""
    if not {"-h", "--help"} & set(arguments):
        yield
        return
    try:
        with redirect_stdout(StringIO()) as page:
            yield
    finally:  # Hydra ends the program
        print(explained(page.getvalue()), end="")


def run_folder(arguments: Sequence[str]) -> str:
    """The one argument of `--run`. Raises ProjectError where there is another number of them."""
    if len(arguments) != 1:
        raise ProjectError("--run takes one run folder: python src/train.py --run RUNDIR.")
    return arguments[0]


def exit_code(command: Callable[[], int], overrides: bool = True) -> int:
    """What a command returns. What a user can cause becomes one message; anything else is a bug and keeps its traceback.

    Args:
        overrides: what was typed are keys and groups of the configuration, of which a refusal lists all problems.
    """
    escape_characters()
    try:
        code = command()
        if sys.stdout is not None:
            sys.stdout.flush()  # a full disk is found here, not at Python's own end
        return code
    except BrokenPipeError:  # `| head`: what was to be done is done
        sys.stdout = None
        return 0
    except KeyboardInterrupt:
        print("interrupted.", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        message = _unwritable_output(error) or refusal(error, _typed() if overrides else [], _sweep())
        if message is None:
            raise
        with suppress(OSError):  # the exit code says it too
            print(f"error: {printable(message)}", file=sys.stderr, flush=True)
        return error.exit_code if isinstance(error, ProjectError) else REFUSED


def _unwritable_output(error: Exception) -> str | None:
    """An error of a file that has no name came from standard output."""
    unnamed = isinstance(error, OSError) and error.errno is not None and error.filename is None
    return trouble() if unnamed else None


def _typed() -> list[str]:
    """The overrides on the command line; none where it can't be read."""
    with suppress(ConfigError):
        return [quoted(word) for word in opened(split(sys.argv[1:]).overrides)]
    return []


def _sweep() -> bool:
    return "-m" in sys.argv or "--multirun" in sys.argv
