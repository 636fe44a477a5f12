"""Each target of the Makefile that a project of one's own keeps works there."""

import re
import subprocess
import sys
from pathlib import Path
from shutil import which

import pytest

from engine.tests.tools.test_project import install, make
from engine.tests.tools.test_setup import PROGRAMS
from tools.testing.plugin import require
from tools.testing.projects import git, run_command

pytestmark = [pytest.mark.git, pytest.mark.slow]

PACKAGE = "humanize==4.9.0"
"""A small package that nothing here needs."""

ELSEWHERE = {
    "test": "test_project.py",
    "update": "test_project.py",
    "system-packages": "installs programs on this machine: make test with CI=true",
    "slurm-up": "engine/tests/slurm/test_testbed_command.py; one testbed per machine",
    "slurm-shell": "the same",
    "slurm-down": "the same",
}
"""Targets that other tests run, or why none does."""

RUN = {
    "help": "make train", "setup": "", "new-task": "Edit these files", "train": "Run folder:",
    "status": "completed", "logs": "epoch 1/1", "cancel": "", "resubmit": "", "lint": "All checks passed!",
    "format": "unchanged", "horovod": "[horovod] ", "lock": "requirements/locks/common.txt",
}  # fmt: skip
"""Targets that are run below, with a part of what they print."""

REFUSED = ("cancel", "resubmit")
"""Targets that refuse a run of this machine with one message."""

ARGUMENTS = {"new-task": ["NAME=mine"], "train": ["ARGS=trainer.fast_dev_run=true"]}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with its own environment, which sees this one's packages."""
    folder = tmp_path_factory.mktemp("own") / "mine"
    assert make(folder).returncode == 0
    binary = install(folder)
    (binary / "ruff").symlink_to(Path(sys.executable).with_name("ruff"))
    (binary / "mypy").write_text(f'#!/bin/sh\nexec {binary}/python -m mypy "$@"\n')
    (binary / "mypy").chmod(0o755)
    git(folder, "commit", "-qm", "start")
    return folder


def call(project: Path, target: str, *words: str) -> "subprocess.CompletedProcess[str]":
    binary = project / ".venv/bin"
    python = f"PYTHON={binary}/python"
    return run_command(
        project, "make", "--no-print-directory", target, f"bin={binary}", python, "CI=", *words
    )


def test_every_target_is_run(project: Path) -> None:
    targets = set(re.findall(r"^([a-z][a-z -]*):(?!=)", (project / "Makefile").read_text(), re.M))
    names = {name for line in targets for name in line.split()}
    assert names == {*RUN, *ELSEWHERE}
    assert not {*RUN} & {*ELSEWHERE}


@pytest.mark.parametrize("target", [name for name in RUN if name not in ("setup", "lock")])
def test_a_target_works(project: Path, target: str) -> None:
    if target in ("status", "logs", *REFUSED) and not (project / "results").exists():
        call(project, "train", *ARGUMENTS["train"])
    done = call(project, target, *ARGUMENTS.get(target, []))
    if target in REFUSED:
        assert done.returncode and done.stderr.count("error:") == 1, done.stderr
        return
    assert done.returncode == 0 and RUN[target] in done.stdout + done.stderr, done.stdout + done.stderr


def test_the_testbed_is_run_from_the_sdist(project: Path, tmp_path: Path) -> None:
    program = (str(project / ".venv/bin/python"), "slurm/testbed.py")
    done = run_command(project, *program, "shell", "--dir", str(tmp_path))
    assert done.returncode == 2 and done.stderr.startswith(f"there is no testbed in {tmp_path}"), done.stderr
    assert not (project / "tools/testbed").exists()


def test_setup_installs_the_locks_and_the_engine(project: Path, tmp_path: Path) -> None:
    copy = tmp_path / "mine"
    git(project, "worktree", "add", "-q", str(copy), "HEAD")
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"
    done = run_command(copy, "env", f"PATH={path}", "VIRTUAL_ENV=", "CONDA_PREFIX=", "make", "setup")
    assert done.returncode == 0, done.stderr
    installed = (copy / "installed.txt").read_text().split()
    assert {"common.txt", "lightning-cpu.txt", "engine.txt"} <= {*installed}


def test_a_package_is_locked(project: Path) -> None:
    """Also after an update, whose list of the own wheel no index can solve."""
    index = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(project / "got"), PACKAGE]
    reached = subprocess.run(index, capture_output=True, timeout=300).returncode == 0
    require(reached or bool(which("uv")), "needs a package index")
    with (project / "requirements/common.txt").open("a") as file:
        file.write(f"{PACKAGE}\n")
    done = call(project, "lock")
    assert done.returncode == 0 and RUN["lock"] in done.stdout, done.stderr
    assert f"{PACKAGE} \\\n" in (project / "requirements/locks/common.txt").read_text()
    changed = git(project, "status", "--short", "requirements").splitlines()
    assert {line.split()[-1] for line in changed} == {
        "requirements/common.txt",
        "requirements/locks/common.txt",
    }
