"""The command line of `src/train.py` for Hydra, and its exit code and error message."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from io import StringIO
from typing import NamedTuple

from train_anywhere.config.command.command_line import split_flags, to_hydra_overrides
from train_anywhere.config.command.compose import CONFIGS, compose, install_choice_loader
from train_anywhere.config.command.diagnose import explain_refusal
from train_anywhere.config.command.help_comments import add_comments, keys_about, sections
from train_anywhere.config.command.yaml_files import refuse_unusable_files
from train_anywhere.config.keys import flatten
from train_anywhere.config.other_names import OTHER_WAYS, keys_meant, page_address
from train_anywhere.config.schema import Config
from train_anywhere.config.search_terms import find_page
from train_anywhere.config.strict import did_you_mean
from train_anywhere.distributed.layout import Layout
from train_anywhere.errors import INTERRUPTED, REFUSED, ConfigError, ProjectError, listed
from train_anywhere.files.root import refuse_deleted_folder
from train_anywhere.files.terminal.fit import fit, fit_message, terminal_width
from train_anywhere.files.terminal.output import escape_characters, output_problem
from train_anywhere.files.terminal.printable import printable
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.summary import as_typed

HELP = {"-h", "--help"}


class Checks(NamedTuple):
    """What a run here or a search asks of its training, or of its program: this package imports neither data nor checkpoints.

    Attributes:
        problems: returns why it can't start on a number of devices; the last argument is false if the data may be elsewhere.
        refuse_unreadable: raises CheckpointError for a run that can't be resumed.
        header: returns the first lines of the run, as far as they are known before it starts.
    """

    problems: Callable[[Config, int, bool], list[str]]
    refuse_unreadable: Callable[[RunDir], None]
    header: Callable[[Config, Layout], list[str]]


def build_hydra_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the command line for Hydra: overrides of `resume=`, then the typed ones.

    Raises:
        ConfigError: a flag does not exist, or Hydra could not read a file below configs/.
        CheckpointError: `resume=` does not name a run folder, or names a damaged one.
    """
    from train_anywhere.runs.reopen.resume import load_saved_overrides  # a command elsewhere reads no run

    refuse_deleted_folder()
    refuse_unusable_files(CONFIGS)
    install_choice_loader()
    typed = help_words(arguments)
    if typed and not help_sections(arguments):
        print_pages(typed)
        raise SystemExit(0)
    line = split_flags([word for word in arguments if word not in typed])
    if keys := [
        w.partition("=")[0] for w in line.overrides if w.lstrip("+~").startswith(("program.", "args."))
    ]:
        raise ConfigError(f"{listed(keys)}: keys of src/run.py, and this is a training; leave them out.")
    saved = load_saved_overrides(line.overrides)
    return [*to_hydra_overrides([*saved, *line.overrides]), *line.flags]


@contextmanager
def add_help_comments(arguments: Sequence[str]) -> Iterator[None]:
    """Add the comments of configuration files to the help page that Hydra prints."""
    if not HELP & set(arguments):
        yield
        return
    try:
        with redirect_stdout(StringIO()) as page:
            yield
    finally:  # Hydra exits after the help page
        print(add_comments(page.getvalue(), help_sections(arguments)), end="")
        print_pages(help_words(arguments))


def help_words(arguments: Sequence[str]) -> list[str]:
    """Return what `--help trainer lr` names."""
    words = [word for word in arguments if "=" not in word and not word.startswith("-")]
    return words if HELP & set(arguments) else []


def print_pages(words: Sequence[str]) -> None:
    """Print the page about each term, and what to do instead of an argument that is not a key."""
    for word in words:
        if way := OTHER_WAYS.get(word.rpartition(".")[2]):
            print(fit(f"{word}: {way}.", terminal_width()))
        if page := find_page(word):
            print(f"{word}: see {page_address(page)}")


def help_sections(arguments: Sequence[str]) -> list[str]:
    """Return what `--help trainer lr` names. Raises ConfigError for an unknown word."""
    named, known, unknown = [], sections(), []
    words = help_words(arguments)
    tree = compose(()) if [word for word in words if word not in known] else {}
    keys = flatten(tree)
    for word in words:
        found = [word] if word in known or word in keys else keys_meant(word, tree) or keys_about(word, keys)
        named += found
        if not found and not find_page(word) and word not in OTHER_WAYS:
            near = did_you_mean(word, [*known, *keys])
            unknown.append(f"{word} is not a section, a key or a term of the pages{near}")
    if unknown:
        raise ConfigError(*unknown)
    return named


def parse_run_argument(arguments: Sequence[str]) -> str:
    """Return the one argument of `--run`. Raises ProjectError for another number of arguments."""
    if len(arguments) != 1:
        raise ProjectError("--run takes one run folder: python src/train.py --run RUNDIR.")
    return arguments[0]


def run_command(command: Callable[[], int], overrides: bool = True) -> int:
    """Run a command and return its exit code.

    An error that a user can cause is printed as one message. A bug keeps its traceback.

    With `overrides` the arguments are overrides of the configuration, and the message lists all of their problems.
    """
    escape_characters()
    try:
        code = command()
        if sys.stdout is not None:
            sys.stdout.flush()  # raises for a full disk here, not when Python exits
        return code
    except BrokenPipeError:  # such as of `| head`: the reader has all that it needs
        sys.stdout = None
        return 0
    except KeyboardInterrupt:
        print("interrupted.", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        # an OSError without a file name is one of standard output
        unnamed = isinstance(error, OSError) and error.errno is not None and error.filename is None
        sweep = "-m" in sys.argv or "--multirun" in sys.argv
        message = output_problem() if unnamed else None
        typed: list[str] = []
        with suppress(ConfigError):  # they can't be parsed
            if overrides and not HELP & {*sys.argv}:
                typed = to_hydra_overrides(split_flags(sys.argv[1:]).overrides)
        message = message or explain_refusal(error, typed, sweep)
        if message is None:
            raise
        with suppress(OSError):  # the exit code remains
            said = as_typed(printable(message))
            print(fit_message(f"error: {said}", sys.stderr), file=sys.stderr, flush=True)
        return error.exit_code if isinstance(error, ProjectError) else REFUSED
