"""Checks of `program`, the command of `src/run.py`, and its number of processes."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from train_anywhere.config.keys import flatten
from train_anywhere.config.schema import Config, Program
from train_anywhere.files import ROOT

OUTSIDE = "outside"
"""Folder in the code of a job with the copy of a program that is not in the project."""

LAUNCHERS = {
    "accelerate": "accelerate",
    "accelerate.commands.launch": "accelerate",
    "torchrun": "torchrun",
    "torch.distributed.run": "torchrun",
    "deepspeed": "deepspeed",
    "deepspeed.launcher.runner": "deepspeed",
    "mpirun": "mpirun",
    "mpiexec": "mpirun",
}
"""Commands and modules that start a process for each GPU of their node themselves."""

VALUE = re.compile(r"\{args\.([\w.]+)\}")
"""Matches the place of a value of `args` in an argument."""


def program_problems(program: Program, args: Mapping[str, Any]) -> Iterator[str]:
    """Yield a message for each part of a program with which it can't be started."""
    command = program.command
    if not all(isinstance(word, str) for word in command):
        yield "program.command is set by src/run.py: python src/run.py -- script.py --epochs 3."
        return
    used, given = dict.fromkeys(VALUE.findall("\0".join(command))), flatten(args)
    for name in [name for name in used if name not in given]:
        yield f"{{args.{name}}} in the arguments of the program has no value; add args.{name}=VALUE."
    for name in [name for name in given if name not in used]:
        yield f"no argument of the program uses args.{name}; write {{args.{name}}} after --, or leave it out."
    if program.folder and not locate(program, program.folder).is_dir():
        yield f"program.folder={program.folder} is not a folder."
    if program.metrics:
        example = r"program.metrics='iter (?P<step>\d+): loss (?P<loss>[0-9.]+)'"
        try:
            if not set(re.compile(program.metrics).groupindex) - {"step", "epoch"}:
                yield f"program.metrics={program.metrics} has no named group for a metric; use one such as {example}."
        except re.error as error:
            yield f"program.metrics={program.metrics} is not a regular expression ({error}); use one such as {example}."
    name, path = command[0], locate(program, command[0])
    if name == "-m" and len(command) == 1:
        yield "-m names no module; use: python src/run.py -- -m package.train --epochs 3."
    elif is_file(name) and not path.is_file():
        yield (
            f"{name!r} is not a file; name a script or a command first, then its arguments: python src/run.py -- train_mine.py --epochs 3."
        )
    elif is_file(name) and not name.endswith(".py") and not os.access(path, os.X_OK):
        yield f"{name} is neither a Python script (.py) nor executable; rename it, or: chmod +x {name}"


def is_file(name: str) -> bool:
    """Return whether the first word of a command names a file, not a module or a command."""
    return name.endswith(".py") or "/" in name


def locate(program: Program, name: str) -> Path:
    """Return the path of the program's script or folder, which a job may have copied."""
    path, top = ROOT / name, Path(program.copied or ROOT)
    copy = ROOT / OUTSIDE / top.name
    in_copy = program.copied and path.is_relative_to(top) and copy.is_dir()
    return copy / path.relative_to(top) if in_copy else path


def launcher_of(command: Sequence[str]) -> str | None:
    """Return accelerate, torchrun, deepspeed or mpirun if the command is one of these."""
    words = [*command]
    if words and re.fullmatch(r"python[\d.]*", os.path.basename(words[0])):
        del words[0]
    name = words[1] if words[:1] == ["-m"] and len(words) > 1 else os.path.basename(words[0]) if words else ""
    return LAUNCHERS.get(name)


def choose_processes(config: Config, devices: int) -> str:
    """Return `program.processes`. auto means rank, node or one, by the devices.

    A launcher that is typed (`launch=torchrun`) asks for ranks.
    """
    if config.program.processes != "auto":
        return config.program.processes
    if launcher_of(config.program.command):
        return "node"
    several = devices > 1 or config.trainer.max_nodes > 1 or config.launch != "auto"
    return "rank" if several else "one"
