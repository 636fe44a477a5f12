"""Checks of `program`, the script that `src/run.py` starts instead of a training."""

import os
from collections.abc import Sequence
from typing import Any

from train_anywhere.files import ROOT


def program_problems(program: Sequence[Any]) -> list[str]:
    """Return a message if the program is not a file of this project that can be started; `program` is empty for a training."""
    if not program:
        return []
    if not all(isinstance(word, str) for word in program):
        return ["program is set by src/run.py: python src/run.py -- script.py --epochs 3."]
    name, path = program[0], ROOT / program[0]
    if name.startswith(("/", "../")) or not path.is_file():
        return [
            f"{name!r} is not a file of this project ({ROOT}), whose copy a job runs; name a script of the project after --, such as: "
            "python src/run.py -- train_mine.py --epochs 3."
        ]
    if not is_python(name) and not os.access(path, os.X_OK):
        return [f"{name} is neither a Python script (.py) nor executable; rename it, or: chmod +x {name}"]
    return []


def is_python(name: str) -> bool:
    """Return whether Python starts the file."""
    return name.endswith(".py")
