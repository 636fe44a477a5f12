"""Checks of `program`, the command that `src/run.py` starts instead of a training, and its number of processes."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

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
}
"""Commands and modules that start a process for each GPU of their node themselves."""

VALUE = re.compile(r"\{args\.([\w.]+)\}")
"""Matches the place of a value of `args` in an argument."""


def program_problems(config: Config) -> list[str]:
    """Return a message for each part of a program that can't be started; none for a training."""
    program = config.program
    command = program.command
    if not command:
        return []
    if not all(isinstance(word, str) for word in command):
        return ["program.command is set by src/run.py: python src/run.py -- script.py --epochs 3."]
    used, given = dict.fromkeys(VALUE.findall("\0".join(command))), flatten(config.args)
    problems = [
        *(
            f"{{args.{n}}} in the arguments of the program has no value; add args.{n}=VALUE."
            for n in used
            if n not in given
        ),
        *(
            f"no argument of the program uses args.{n}; write {{args.{n}}} after --, or leave it out."
            for n in given
            if n not in used
        ),
    ]
    if program.folder and not locate(program, program.folder).is_dir():
        problems.append(f"program.folder={program.folder} is not a folder.")
    if program.metrics:
        problems += _metrics_problems(program.metrics)
    name, path = command[0], locate(program, command[0])
    if name == "-m" and len(command) == 1:
        problems.append("-m names no module; use: python src/run.py -- -m package.train --epochs 3.")
    elif is_file(name) and not path.is_file():
        problems.append(
            f"{name!r} is not a file; name a script or a command first, then its arguments: python src/run.py -- train_mine.py --epochs 3."
        )
    elif is_file(name) and not is_python(name) and not os.access(path, os.X_OK):
        problems.append(
            f"{name} is neither a Python script (.py) nor executable; rename it, or: chmod +x {name}"
        )
    return problems


def _metrics_problems(pattern: str) -> list[str]:
    example = r"program.metrics='iter (?P<step>\d+): loss (?P<loss>[0-9.]+)'"
    try:
        groups = set(re.compile(pattern).groupindex) - {"step", "epoch"}
    except re.error as error:
        return [
            f"program.metrics={pattern} is not a regular expression ({error}); use one such as {example}."
        ]
    return (
        []
        if groups
        else [f"program.metrics={pattern} has no named group for a metric; use one such as {example}."]
    )


def is_python(name: str) -> bool:
    """Return whether Python starts the file."""
    return name.endswith(".py")


def is_file(name: str) -> bool:
    """Return whether the first word of a command names a file; else it is `-m`, or a command of the environment."""
    return is_python(name) or "/" in name


def locate(program: Program, name: str) -> Path:
    """Return the path of the program's script or folder: in the project, in its copy in a job, or where it is."""
    path, top = ROOT / name, Path(program.copied or ROOT)
    copy = ROOT / OUTSIDE / top.name
    return (
        copy / path.relative_to(top)
        if program.copied and path.is_relative_to(top) and copy.is_dir()
        else path
    )


def launcher_of(command: Sequence[str]) -> str | None:
    """Return accelerate, torchrun or deepspeed if the command is one of these; else None."""
    words = [*command]
    if words and re.fullmatch(r"python[\d.]*", os.path.basename(words[0])):
        del words[0]
    name = words[1] if words[:1] == ["-m"] and len(words) > 1 else os.path.basename(words[0]) if words else ""
    return LAUNCHERS.get(name)


def choose_processes(config: Config, devices: int) -> str:
    """Return `program.processes`, and what auto means for this number of devices: rank, node or one.

    A launcher that is typed (`launch=torchrun`) asks for ranks.
    """
    if config.program.processes != "auto":
        return config.program.processes
    if launcher_of(config.program.command):
        return "node"
    several = devices > 1 or config.trainer.max_nodes > 1 or config.launch != "auto"
    return "rank" if several else "one"
