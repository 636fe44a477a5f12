"""Convert exceptions that the user's input caused, in any library, to one sentence."""

import traceback
from argparse import ArgumentError
from json import JSONDecodeError
from pathlib import Path

import yaml

from train_anywhere.config.command.yaml_files import yaml_sentence
from train_anywhere.errors import ProjectError

COMPOSING = ("hydra", "omegaconf", "yaml", "antlr4", "argparse")
"""Packages that parse the user's input: a built-in error raised in them is about that input."""


def is_configuration_error(error: Exception) -> bool:
    """Return whether the error comes from reading or composing the configuration, not from this project's code."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    if isinstance(error, (HydraException, OmegaConfBaseException, yaml.YAMLError, ArgumentError)):
        return True
    return not isinstance(error, (ProjectError, OSError)) and raising_package(error) in COMPOSING


def error_sentence(error: Exception) -> str | None:
    """Return one sentence for an error; None for a bug."""
    if isinstance(error, ProjectError):
        return str(error)
    if isinstance(error, yaml.YAMLError):
        return yaml_sentence(error)
    of_configuration = is_configuration_error(error)
    if isinstance(error, OSError) and not of_configuration:  # some of Hydra's errors are OSErrors
        what = error.strerror or str(error)
        return f"{error.filename}: {what}." if error.filename else f"{what} ({error_location(error)})."
    if isinstance(error, (UnicodeError, JSONDecodeError)):
        return f"{error} ({error_location(error)})."
    if isinstance(error, RecursionError) and of_configuration:
        return _recursion_sentence(error)
    return hydra_sentence(error) if of_configuration else None


def _recursion_sentence(error: RecursionError) -> str:
    """Return the cause of a recursion: Hydra follows `defaults` from file to file, OmegaConf the nesting of a value."""
    names = [Path(f.filename).name for f in traceback.extract_tb(error.__traceback__)]
    if names.count("defaults_list.py") > len(names) // 4:  # otherwise Hydra only reads a file of the list
        return "the configuration includes itself: look for a file whose `defaults` name that file."
    return "a value of the configuration has too many nested brackets."


def hydra_sentence(error: BaseException, above: tuple[BaseException, ...] = ()) -> str:
    """Return Hydra's or OmegaConf's message in one line, with the key and the cause, without the search path."""
    text = str(error).split("\nConfig search path")[0].split("\nSee https:")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    key = next((line.removeprefix("full_key: ") for line in lines if line.startswith("full_key: ")), "")
    message = " ".join(line for line in lines if not line.startswith(("full_key:", "object_type=")))
    cause = error.__cause__
    if cause is not None and cause not in (*above, error) and str(cause).split("\n")[0] not in message:
        message = f"{message}{': ' if message else ''}{hydra_sentence(cause, (*above, error))}"
    start = f"{key}: " if key and key not in message else ""
    return f"{start}{message or type(error).__name__}"


def raising_package(error: BaseException) -> str:
    """Return the package in `COMPOSING` that raised the error; recursion and decoding errors come from code that it calls."""
    frames = traceback.extract_tb(error.__traceback__)
    names = [p for f in frames for p in Path(f.filename).parts if p in COMPOSING]
    if isinstance(error, (RecursionError, UnicodeError)):
        return names[-1] if names else ""
    parts = Path(frames[-1].filename).parts if frames else ()
    if parts[-2:] == ("logging", "config.py"):  # `hydra.job_logging`
        return "hydra"
    return next((p for p in parts if p in COMPOSING), "")


def error_location(error: BaseException) -> str:
    """Return the file and line that raised an error, for errors that do not name a file."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else "at the start"
