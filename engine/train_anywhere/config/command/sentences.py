"""One sentence for an exception that the user's input caused, whichever library raised it."""

import traceback
from argparse import ArgumentError
from json import JSONDecodeError
from pathlib import Path

import yaml

from train_anywhere.config.command.yaml_files import yaml_sentence
from train_anywhere.errors import ProjectError

COMPOSING = ("hydra", "omegaconf", "yaml", "antlr4", "argparse")
"""Packages that parse the user's input: an error of Python's own that is raised in them is about that input."""


def about_configuration(error: Exception) -> bool:
    """Whether the error was raised by reading and composing the configuration, not by our own code."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    if isinstance(error, (HydraException, OmegaConfBaseException, yaml.YAMLError, ArgumentError)):
        return True
    return not isinstance(error, (ProjectError, OSError)) and raised_in(error) in COMPOSING


def sentence(error: Exception) -> str | None:
    """One sentence for one error; None for a bug."""
    if isinstance(error, ProjectError):
        return str(error)
    if isinstance(error, yaml.YAMLError):
        return yaml_sentence(error)
    if isinstance(error, OSError) and not about_configuration(error):  # some of Hydra's errors are OSErrors
        what = error.strerror or str(error)
        return f"{error.filename}: {what}." if error.filename else f"{what} ({place(error)})."
    if isinstance(error, (UnicodeError, JSONDecodeError)):
        return f"{error} ({place(error)})."
    if isinstance(error, RecursionError) and about_configuration(error):
        return _endless(error)
    return composed_sentence(error) if about_configuration(error) else None


def _endless(error: RecursionError) -> str:
    """Hydra recurses through `defaults` from file to file, OmegaConf through the lists and sections of a value."""
    names = [Path(f.filename).name for f in traceback.extract_tb(error.__traceback__)]
    if names.count("defaults_list.py") > len(names) // 4:  # else it only reads a file that one names
        return "the configuration includes itself: look for a file whose `defaults` name that file."
    return "a value of the configuration has too many nested brackets."


def composed_sentence(error: BaseException, above: tuple[BaseException, ...] = ()) -> str:
    """Hydra's or OmegaConf's message in one line: with the key and the cause, without the search path."""
    text = str(error).split("\nConfig search path")[0].split("\nSee https:")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    key = next((line.removeprefix("full_key: ") for line in lines if line.startswith("full_key: ")), "")
    said = " ".join(line for line in lines if not line.startswith(("full_key:", "object_type=")))
    cause = error.__cause__
    if (
        cause is not None
        and cause not in (*above, error)
        and str(cause)
        and str(cause).split("\n")[0] not in said
    ):
        said = f"{said}{': ' if said else ''}{composed_sentence(cause, (*above, error))}"
    start = f"{key}: " if key and key not in said else ""
    return f"{start}{said or type(error).__name__}"


def raised_in(error: BaseException) -> str:
    """The package whose code raised the error; recursion and decoding fail in code that it calls."""
    frames = traceback.extract_tb(error.__traceback__)
    names = [p for f in frames for p in Path(f.filename).parts if p in COMPOSING]
    if isinstance(error, (RecursionError, UnicodeError)):
        return names[-1] if names else ""
    parts = Path(frames[-1].filename).parts if frames else ()
    if parts[-2:] == ("logging", "config.py"):  # `hydra.job_logging`
        return "hydra"
    return next((p for p in parts if p in COMPOSING), "")


def place(error: BaseException) -> str:
    """The file and line that raised an error, for one that names no file."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else "at the start"
