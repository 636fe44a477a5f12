"""The command line of `src/run.py`: keys of the job, `--`, a script and its arguments."""

import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from train_anywhere.config.checks.program import is_file
from train_anywhere.config.command.command_line import split_flags
from train_anywhere.config.command.compose import compose, install_choice_loader, quote_value
from train_anywhere.config.keys import flatten
from train_anywhere.errors import ConfigError, listed
from train_anywhere.files import ROOT
from train_anywhere.files.root import find_top, resolve_as_typed

SECTIONS = ("cluster", "container", "paths", "features", "program", "args")
"""Sections that a program has too."""

KEYS = (
    "name", "note", "launch", "wait", "after", "dry_run", "resume", "trust", "trainer.nodes", "trainer.devices", "trainer.total_devices",
    "trainer.accelerator", "trainer.detect_nan", "checkpoint.monitor", "checkpoint.mode", "checkpoint.local",
    "checkpoint.every_n_seconds", "monitor.sample_seconds", "monitor.serve", "monitor.serve_address", "monitor.dashboard",
    "monitor.hang", "monitor.hang_minutes", "monitor.idle", "monitor.report",
)  # fmt: skip
"""Other keys that a program has."""

FIXED = ("strategy=ddp",)
"""Choices of the training that give a program one rank per device, and any number of nodes."""


def split_command(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words before `--`, and the program with its arguments after it."""
    at = list(arguments).index("--") if "--" in arguments else len(arguments)
    return [*arguments[:at]], [*arguments[at + 1 :]]


def split_words(words: Sequence[str]) -> tuple[list[str], bool]:
    """Return the overrides, and whether they are a sweep. Raises ConfigError for other flags."""
    line = split_flags(words)
    sweep = {"-m", "--multirun"}
    if other := [flag for flag in line.flags if flag not in sweep]:
        raise ConfigError(
            f"{other[0]} is not a flag of src/run.py; arguments of the program come after --, such as: "
            "python src/run.py cluster=slurm -- script.py --epochs 3."
        )
    return line.overrides, bool(line.flags)


def find_program(program: Sequence[str], typed_folder: str | None = None) -> dict[str, Any]:
    """Return command, folder and copied of `config.schema.Program` for what follows `--`.

    Raises:
        ConfigError: there is no such file, folder, module or command, or an argument is not UTF-8.
    """
    if not program:
        raise ConfigError(
            "no program is named: its script comes after --, such as: python src/run.py -- script.py --epochs 3."
        )
    if any(re.search("[\ud800-\udfff]", word) for word in program):
        raise ConfigError("an argument of the program is not UTF-8; rename the file that it names.")
    folder = resolve_as_typed(os.path.expanduser(typed_folder)) if typed_folder else None
    if folder and not folder.is_dir():
        raise ConfigError(f"program.folder={typed_folder} is not a folder.")
    name = program[0]
    places = [Path(os.path.abspath(folder or ""), name), Path(os.path.abspath(name))]
    path = next((resolve_as_typed(one) for one in places if one.is_file()), None)
    if path:
        name = _project_name(path)
        name = name if is_file(name) else f"./{name}"
    elif is_file(name):
        raise ConfigError(
            f"{name!r} is not a file; name a script or a command first, then its arguments: python src/run.py -- script.py --epochs 3."
        )
    outside = [top for one in (folder, path) if one and (top := _find_outside(one))]
    if len(outside) > 1 and not outside[1].is_relative_to(outside[0]):
        raise ConfigError(
            f"{path} is not below {outside[0]}, and a job copies one folder; name a script of that one."
        )
    found = {"command": [name, *program[1:]], "copied": str(outside[0]) if outside else None}
    return found | ({"folder": _project_name(folder)} if folder else {})


def _project_name(path: Path) -> str:
    """Return a path relative to the project, or as it is if it is not in the project."""
    pairs = ((path, ROOT), (path.resolve(), ROOT.resolve()))
    return next((str(one.relative_to(root)) for one, root in pairs if one.is_relative_to(root)), str(path))


def _find_outside(path: Path) -> Path | None:
    """Return the git repository or folder of what is not in the project, else None."""
    here = path if path.is_dir() else path.parent
    commands = [os.path.dirname(sys.executable), *os.environ.get("PATH", "").split(os.pathsep)]
    if not Path(_project_name(path)).is_absolute() or (path.is_file() and str(here) in commands):
        return None
    return find_top(here)


def command_problems(command: Sequence[str]) -> list[str]:
    """Return a message if the first word of a command can't be started."""
    name, here = command[0], str(Path(sys.executable).parent)
    path = os.pathsep.join([here, os.environ.get("PATH", os.defpath)])
    if is_file(name) or name == "-m" or shutil.which(name, path=path):
        return []
    return [
        f"{name!r} is neither a file nor a command of this environment; name a script or a command first, then its arguments: "
        "python src/run.py -- script.py --epochs 3."
    ]


def unused_key_problems(words: Sequence[str]) -> list[str]:
    """Return a message if there are keys that a training has and a program has not."""
    known = {"experiment", *(key.partition(".")[0] for key in flatten(compose([])))}
    keys = [word.lstrip("+~").partition("=")[0] for word in words]
    tops = {key: key.partition(".")[0] for key in keys}
    unused = [k for k, top in tops.items() if top in known and k not in KEYS and top not in SECTIONS]
    if not unused:
        return []
    return [
        f"{listed(unused)}: a key of a training means nothing for a program; pass the program's own arguments after --, or leave it "
        f"out. Keys of a program: {listed((*SECTIONS, *KEYS))}."
    ]


def prepare_words(words: Sequence[str], program: Sequence[str]) -> list[str]:
    """Return the overrides in Hydra's notation, with the name of the run."""
    install_choice_loader()
    named = any(word.startswith(("name=", "resume=")) for word in words)
    if program and not named:
        # that of the script, module or command
        module = program[0] == "-m" and len(program) > 1
        word = program[1].rpartition(".")[2] if module else Path(program[0]).stem
        stem = re.sub(r"[^A-Za-z0-9._=+-]", "-", word).lstrip("._=+-")[:100]
        words = [f"name={stem if stem and stem.lower() != 'latest' else 'program'}", *words]
    return [f"++{word}" if word.startswith("args.") else word for word in map(quote_value, words)]
