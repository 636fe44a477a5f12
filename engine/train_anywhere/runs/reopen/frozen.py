"""The frozen configuration of a run, config.yaml and overrides.txt: what the ranks read, and what `resume=` continues.

It is read as a whole, before anything in the run folder is written.
"""

import os
import re
from collections.abc import Sequence
from typing import Any

import yaml

from train_anywhere.config.command.yaml_files import too_large
from train_anywhere.config.load import as_tree
from train_anywhere.config.schema import Config
from train_anywhere.errors import CheckpointError
from train_anywhere.files.atomic import read_text, write_keeping
from train_anywhere.renamed import in_override, update_tree
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.links import not_ordinary

ALWAYS = ("name", "seed", "framework", "data", "model", "optimizer", "strategy", "trainer", "paths")
"""Keys that every run has had; a file that was cut off would make another run of it."""

FREE = ("resume", "after", "dry_run", "trust", "from_scratch")
"""Keys that belong to one command, not to the run."""

ONE_COMMAND = re.compile(rf"-|[+~]*(hydra[./:@=]|({'|'.join(FREE)})(=|$))")
"""What begins an argument that is not kept in overrides.txt: flags, Hydra's own keys, and those of `FREE`."""


def write_frozen(run: RunDir, config: Config, overrides: Sequence[str]) -> None:
    """Write the configuration that the ranks read: complete, resolved, with absolute paths.

    Where a resumed run continues with another one, the one from before is kept beside it as config.yaml.1 and so on.
    """
    tree = {**as_tree(config), "from_scratch": False}
    kept = [o for o in overrides if not ONE_COMMAND.match(o)]
    write_keeping(run.config, yaml.safe_dump(tree, sort_keys=False))
    write_keeping(run.overrides, "".join(o + "\n" for o in dict.fromkeys(kept)))


def read_frozen(run: RunDir) -> dict[str, Any]:
    """The configuration in config.yaml, with today's names of modules.

    Raises:
        CheckpointError: where it can't be read.
    """
    try:
        text = read_text(run.config)
        tree = None if "*" in text and too_large(text) else yaml.safe_load(text)
    except OSError as error:
        raise CheckpointError(f"{run.config} can't be read ({error.strerror or error}).") from error
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{run.config} is damaged (not UTF-8); {_again(run)}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{run.config} is damaged (no YAML{_line(error)}); {_again(run)}") from error
    if not isinstance(tree, dict) or not all(isinstance(key, str) for key in tree):
        raise CheckpointError(f"{run.config} is damaged (no configuration); {_again(run)}")
    if gone := [key for key in ALWAYS if key not in tree]:
        raise CheckpointError(f"{run.config} is damaged (it lacks {', '.join(gone)}); {_again(run)}")
    update_tree(tree)
    return tree


def read_overrides(run: RunDir) -> list[str]:
    """The overrides that made the run, from overrides.txt.

    Raises:
        CheckpointError: where it can't be read.
    """
    try:
        return [in_override(line) for line in read_text(run.overrides).splitlines() if line]
    except OSError as error:
        raise CheckpointError(
            f"{run.overrides} can't be read ({error.strerror or error}); {_again(run)}"
        ) from error
    except ValueError as error:
        raise CheckpointError(f"{run.overrides} is damaged (not UTF-8); {_again(run)}") from error


def refuse_damaged(run: RunDir) -> None:
    """Look at everything that a resume depends on, and change nothing.

    Raises:
        CheckpointError: with all that is wrong with the run folder.
    """
    problems = not_ordinary(run)
    for file, read in (
        (run.config, read_frozen),
        (run.overrides, read_overrides),
        (run.info_file, RunDir.info),
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


def _again(run: RunDir) -> str:
    return f"restore {run.path.name} from a copy, or start a new run."


def _line(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    return f" in line {mark.line + 1}" if mark else ""
