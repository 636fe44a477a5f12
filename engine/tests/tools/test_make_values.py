"""Variables of `make` reach the program unchanged. Stand-ins record their arguments."""

import os
import subprocess
from pathlib import Path

import pytest

from tools.testing.processes import run_python
from train_anywhere.files import ROOT

VALUES = [
    'it\'s "here" $HOME',
    "two  blanks, $(HOME) ${HOME} $$ $@ `date` $(date)",
    "first\nsecond # not a comment \n ",
    "back\\slash \\n * ? [a] ~ ; & | < > ! % = : ,",
    "--help",
    "日本 é",
]

TARGETS = {
    "status": ("RUN", ["src/jobs.py", "status", "{}"]),
    "logs": ("RUN", ["src/jobs.py", "logs", "{}"]),
    "cancel": ("RUN", ["src/jobs.py", "cancel", "{}"]),
    "resubmit": ("RUN", ["src/jobs.py", "resubmit", "{}"]),
    "new-task": ("NAME", ["tools/new_task.py", "{}"]),
    "project": ("DIR", ["tools/project.py", "make", "{}", "", "", "", ""]),
    "project ": ("NAME", ["tools/project.py", "make", "", "{}", "", "", ""]),
    "project  ": ("CLUSTER", ["tools/project.py", "make", "", "", "", "{}", ""]),
    "update": ("FROM", ["tools/engine.py", "update", "{}"]),
}
"""Targets, their variable, and the arguments of Python that they give with a value of it."""

SETUP = ("FRAMEWORK", "WHEELS", "LOCKED")
"""Variables that `make setup` passes through the environment."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a project with the Makefile, a recording Python and a recording setup."""
    (tmp_path / "Makefile").write_bytes((ROOT / "Makefile").read_bytes())
    record = f"for word; do printf '%s\\0' \"$word\"; done >{tmp_path}/seen"
    shown = "\n".join(f"printf '%s\\0' \"${name}\" >>{tmp_path}/seen" for name in SETUP)
    for place, script in {"python": record, "tools/setup.sh": shown}.items():
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / place).chmod(0o755)
    return tmp_path


def make(folder: Path, *words: str, **environment: str) -> list[str]:
    """Run `make` without a Python environment, and return what the stand-in has recorded."""
    (folder / "seen").unlink(missing_ok=True)
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder), **environment}
    done = subprocess.run(["make", *words], cwd=folder, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return (folder / "seen").read_text().split("\0")[:-1]


@pytest.mark.parametrize("target", TARGETS)
def test_a_value_reaches_the_program_as_typed(folder: Path, target: str) -> None:
    variable, expected = TARGETS[target]
    programs = (f"PYTHON={folder}/python", f"bin={folder}")
    for value in VALUES:
        arguments = [word.format(value) if word == "{}" else word for word in expected]
        typed = make(folder, target.strip(), f"{variable}={value}", *programs)
        exported = make(folder, target.strip(), *programs, **{variable: value})
        assert typed == exported == arguments


def test_the_newest_run_needs_no_value(folder: Path) -> None:
    for words in ((), ("RUN=",)):
        assert make(folder, "status", f"bin={folder}", *words) == ["src/jobs.py", "status"]


def test_setup_gets_its_values_as_typed(folder: Path) -> None:
    for value in VALUES:
        words = [f"{name}={value}" for name in SETUP]
        assert make(folder, "setup", f"PYTHON={folder}/python", *words) == [value] * 3


TOOLS = {path.name: path.read_text() for path in sorted(ROOT.glob("tools/*.py"))}


@pytest.mark.new_process
@pytest.mark.parametrize("script", [name for name, text in TOOLS.items() if "__main__" in text])
def test_help_is_the_docstring(tmp_path: Path, script: str) -> None:
    for name, text in TOOLS.items():  # some import their neighbors
        (tmp_path / name).write_text(text)
    done = run_python("-B", tmp_path / script, "--help", cwd=tmp_path)
    assert done.returncode == 0 and done.stderr == ""
    assert TOOLS[script].split('"""')[1].strip() in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {*TOOLS}
