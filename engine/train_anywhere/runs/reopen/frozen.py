"""The frozen configuration of a run, config.yaml and overrides.txt, which the ranks and `resume=` read.

All of it is read and checked before anything in the run folder is written.
"""

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import yaml

from train_anywhere.config.command.yaml_files import is_too_large
from train_anywhere.config.load import to_tree
from train_anywhere.config.schema import Config
from train_anywhere.errors import CheckpointError
from train_anywhere.files.atomic import read_text, write_with_backup
from train_anywhere.files.terminal.printable import mask_urls
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.links import find_special_files

REQUIRED_KEYS = ("name", "seed", "framework", "data", "model", "optimizer", "strategy", "trainer", "paths")
"""Keys that every run has; a file without one of them was cut off, and would resume as another run."""

COMMAND_KEYS = ("resume", "after", "dry_run", "trust", "from_scratch")
"""Keys that apply to one command, not to the run."""

SECRET = "monitor.notify"
"""Key whose value may hold the secret URL of a webhook."""

DEEPEST = 5000
"""Levels of nested YAML that libyaml can parse; a level takes a bracket or a column of a line."""

NOT_SAVED = re.compile(rf"-|[+~]*(hydra[./:@=]|({'|'.join(COMMAND_KEYS)})(=|$))")
"""Matches the start of arguments that are not kept in overrides.txt: flags, Hydra's keys, and `COMMAND_KEYS`."""


def write_frozen(run: RunDir, config: Config, overrides: Sequence[str]) -> None:
    """Write the configuration that the ranks read: complete, resolved, with absolute paths.

    If a resumed run continues with a changed configuration, the earlier files are kept as config.yaml.1 and so on.
    """
    tree = {**to_tree(config), "from_scratch": False}
    kept = [o for o in overrides if not NOT_SAVED.match(o)]
    write_with_backup(run.config, yaml.safe_dump(tree, sort_keys=False))
    write_with_backup(run.overrides, "".join(o + "\n" for o in dict.fromkeys(kept)))


def read_frozen(run: RunDir) -> dict[str, Any]:
    """Return the configuration in config.yaml.

    Raises:
        CheckpointError: it is damaged or can't be read.
    """
    try:
        text = read_text(run.config)
        tree = None if "*" in text and is_too_large(text) else load_yaml(text)
    except OSError as error:
        raise CheckpointError(f"{run.config} can't be read ({error.strerror or error}).") from error
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{run.config} is damaged (not UTF-8); {_remedy(run)}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{run.config} is damaged (no YAML{_line(error)}); {_remedy(run)}") from error
    if not isinstance(tree, dict) or not all(isinstance(key, str) for key in tree):
        raise CheckpointError(f"{run.config} is damaged (no configuration); {_remedy(run)}")
    if gone := [key for key in REQUIRED_KEYS if key not in tree]:
        raise CheckpointError(f"{run.config} is damaged (it lacks {', '.join(gone)}); {_remedy(run)}")
    return tree


def load_yaml(text: str) -> Any:
    """Return the content of some YAML, parsed by libyaml, unless it may be too deep for its stack. Raises yaml.YAMLError."""
    depth = text.count("[") + text.count("{") + max(map(len, text.splitlines()), default=0)
    return yaml.load(
        text, yaml.SafeLoader if depth > DEEPEST else getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    )


def read_overrides(run: RunDir) -> list[str]:
    """Return the overrides of the run from overrides.txt.

    Raises:
        CheckpointError: it is damaged or can't be read.
    """
    try:
        return [line for line in read_text(run.overrides).splitlines() if line]
    except OSError as error:
        raise CheckpointError(
            f"{run.overrides} can't be read ({error.strerror or error}); {_remedy(run)}"
        ) from error
    except ValueError as error:
        raise CheckpointError(f"{run.overrides} is damaged (not UTF-8); {_remedy(run)}") from error


def typed_overrides(run: RunDir) -> list[str] | None:
    """Return the overrides that train a run again, as they are typed, without secrets; None if they can't be read."""
    with suppress(CheckpointError):
        words = [word.removeprefix("++") for word in read_overrides(run) if not word.startswith("wait=")]
        return [mask_urls(word) if word.startswith(SECRET) else word for word in words]
    return None


def refuse_damaged(run: RunDir) -> None:
    """Check everything that a resume depends on, and change nothing.

    Raises:
        CheckpointError: lists all problems of the run folder.
    """
    problems = find_special_files(run)
    for file, read in (
        (run.config, read_frozen),
        (run.overrides, read_overrides),
        (run.info_file, RunDir.read_info),
    ):
        if any(problem.startswith(f"{file} ") for problem in problems):
            continue
        try:
            read(run)
        except CheckpointError as error:
            problems.append(str(error))
    if not os.access(run.path, os.W_OK | os.X_OK):
        problems.append(
            f"{run.path} can't be written: a run continues in its own folder, so copy it to where you may write."
        )
    if problems:
        raise CheckpointError("\n       ".join(problems))


def _remedy(run: RunDir) -> str:
    return f"restore {run.path.name} from a copy, or start a new run."


def _line(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    return f" in line {mark.line + 1}" if mark else ""
