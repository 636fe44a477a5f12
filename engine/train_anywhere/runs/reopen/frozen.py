"""The frozen configuration of a run: config.yaml and overrides.txt.

All of it is read and checked before anything in the run folder is written. Links are refused where a run writes: one could lead the run
to overwrite a file elsewhere. Others are allowed, such as the user's notes, or a checkpoint that was moved to another disk.
"""

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from train_anywhere.config.command.yaml_files import refuse_endless_aliases
from train_anywhere.config.keys import CUSTOM, TARGET, flatten
from train_anywhere.config.load import load, to_tree
from train_anywhere.config.schema import Config
from train_anywhere.errors import CheckpointError, listed
from train_anywhere.files.atomic import read_text, write_with_backup
from train_anywhere.runs.folder import RunDir

REQUIRED_KEYS = ("name", "seed", "framework", "data", "model", "optimizer", "strategy", "trainer", "paths")
"""Keys that every run has; a file without one of them was cut off, and would resume as another run."""

COMMAND_KEYS = ("resume", "study", "after", "dry_run", "trust", "from_scratch")
"""Keys that apply to one command, not to the run."""

NOT_SAVED = re.compile(rf"-|[+~]*(hydra[./:@=]|({'|'.join(COMMAND_KEYS)})(=|$))")
"""Matches the start of arguments that are not kept in overrides.txt: flags, Hydra's keys, and `COMMAND_KEYS`."""


def write_frozen(run: RunDir, config: Config, overrides: Sequence[str]) -> None:
    """Write the configuration that the ranks read: complete, resolved, with absolute paths.

    If a resumed run continues with a changed configuration, the earlier files are kept as config.yaml.1 and so on.
    """
    tree = {**to_tree(config), "from_scratch": False}
    kept = [o for o in overrides if not NOT_SAVED.match(o)]
    write_with_backup(run.config, yaml.safe_dump(tree, sort_keys=False))
    lines = (re.sub(r"\r\n?|\n", "\n ", o) for o in dict.fromkeys(kept))  # the rest of a value is indented
    write_with_backup(run.overrides, "".join(line + "\n" for line in lines))


def read_frozen(run: RunDir) -> dict[str, Any]:
    """Return the configuration in config.yaml. Raises CheckpointError if it is damaged."""
    try:
        text = read_text(run.config)
        if "*" in text:
            refuse_endless_aliases(yaml.compose(text, Loader=yaml.SafeLoader))
        tree = load_yaml(text)
        if "*" in text and isinstance(tree, dict):
            flatten(tree)  # raises RecursionError for a section in itself
    except OSError as error:
        raise CheckpointError(f"{run.config} can't be read ({error.strerror or error}).") from error
    except UnicodeDecodeError as error:
        raise _unusable(run.config, "is damaged (not UTF-8)") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark else ""
        raise _unusable(run.config, f"is damaged (no YAML{line})") from error
    if not isinstance(tree, dict) or not all(isinstance(key, str) and "." not in key for key in tree):
        raise _unusable(run.config, "is damaged (no configuration)")
    if gone := [key for key in REQUIRED_KEYS if key not in tree]:
        raise _unusable(run.config, f"is damaged (it lacks {listed(gone)})")
    return tree


def load_frozen(run: RunDir) -> Config:
    """Return the configuration that the run was started or resumed with."""
    return load(read_frozen(run))


def load_yaml(text: str) -> Any:
    """Return the content of some YAML, parsed by libyaml unless too deep for it."""
    # libyaml can parse 5000 levels, of which each takes a bracket or a column of a line
    depth = text.count("[") + text.count("{") + max(map(len, text.splitlines()), default=0)
    return yaml.load(text, yaml.SafeLoader if depth > 5000 else getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def read_overrides(run: RunDir) -> list[str]:
    """Return the overrides in overrides.txt. Raises CheckpointError if it is damaged."""
    try:
        # indented lines continue a value
        lines = re.split(r"\r?\n(?! )", read_text(run.overrides))
    except OSError as error:
        raise _unusable(run.overrides, f"can't be read ({error.strerror or error})") from error
    except ValueError as error:
        raise _unusable(run.overrides, "is damaged (not UTF-8)") from error
    return [line.replace("\n ", "\n") for line in lines if line]


def typed_overrides(run: RunDir) -> list[str] | None:
    """Return the overrides that train a run again, as typed, without secrets."""
    with suppress(CheckpointError):
        words = [word.removeprefix("++") for word in read_overrides(run) if not word.startswith("wait=")]
        added = {f"{word.partition('.')[0]}={CUSTOM}" for word in words if f".{TARGET}" in word}
        last = {word.partition("=")[0]: word for word in words if word not in added}
        return [*last.values()]
    return None


def refuse_damaged(run: RunDir) -> None:
    """Check everything that a resume depends on. Raises CheckpointError with all problems."""
    problems = find_special_files(run)
    readers = {run.config: read_frozen, run.overrides: read_overrides, run.info_file: RunDir.read_info}
    for file, read in readers.items():
        if not any(problem.startswith(f"{file} ") for problem in problems):
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


def _unusable(file: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{file} {what}; restore {file.parent.name} from a copy, or start a new run.")


FILES = (
    r"config\.yaml|overrides\.txt|run\.json|steps|metrics\.csv|jobs\.txt|lock|bad_nodes|trial\.json|report\.html|log\.txt|job\.\w+"
    r"|\.run-marker|(slurm|pbs)-.*\.(out|err)"
)
"""Names of the files that this project and the schedulers write directly in the run folder."""

FOLDERS = "checkpoints|tensorboard|monitor|debug|profile|ranks|evaluations|exports|wandb|mlruns"
"""Names of the folders that this project and its loggers make there."""

BELOW = (
    r"(monitor|debug|profile|ranks|mlruns)/.*|checkpoints/(newest|best|\.run-marker)|tensorboard/events\.out\.[^/]*"
    r"|wandb/(?!latest-run$|debug.*\.log$)[^/]*"  # links that W&B makes
)
"""Names that are written in these folders."""

WALKED = re.compile(r"checkpoints|tensorboard|wandb|(monitor|debug|profile|ranks|mlruns)(/.*)?", re.DOTALL)
"""Folders of which all entries are checked."""


def refuse_links(run: RunDir) -> None:
    """Raise CheckpointError with all messages of `find_special_files`."""
    if problems := find_special_files(run):
        raise CheckpointError("\n       ".join(problems))


def find_special_files(run: RunDir) -> list[str]:
    """Return a message for each link, pipe or device in the place of what a run writes."""
    found = []
    for top, folders, files in os.walk(run.path):
        names = {os.path.relpath(os.path.join(top, name), run.path): name for name in (*folders, *files)}
        written = (p for p in names if re.fullmatch(f"{FILES}|{FOLDERS}|{BELOW}", p, re.DOTALL))
        found += [_problem(run.path / path, path) for path in written]
        folders[:] = [name for path, name in names.items() if WALKED.fullmatch(path) and name in folders]
    return sorted(filter(None, found))


def _problem(path: Path, name: str) -> str:
    if path.is_symlink():
        return f"{path} is a link to {os.readlink(path)}: a run continues in its own folder, so put what it leads to there."
    if path.is_dir():
        # the writers of these two move a folder to another name, or refuse it
        in_the_way = re.fullmatch(FILES, name) and name not in ("metrics.csv", "lock")
        return f"{path} is a folder, not an ordinary file; move it away." if in_the_way else ""
    if re.fullmatch(FOLDERS, name):
        return f"{path} is not a folder; move it away."
    return "" if path.is_file() else f"{path} is a pipe or device, not an ordinary file; move it away."
