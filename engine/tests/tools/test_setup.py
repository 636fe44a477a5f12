"""tools/setup.sh: installed packages, the memory of .venv, and refusals."""

import os
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.tests.tools.test_environment import FRAMEWORKS, project  # noqa: F401 - a fixture

PROGRAMS = {
    "uv": 'for word; do case "$word" in --requirement=*) echo "${word##*/}" >>installed.txt ;; esac; done',
    "nvidia-smi": '[ -n "${HAS_GPU:-}" ] && echo "GPU 0: NVIDIA H100"',
    "python3": f'[ "$1 $2" = "-m venv" ] || exec {sys.executable} "$@"; shift 2; exec {sys.executable} -m venv --without-pip "$@"',
    "python3.14": "echo 3.14; exit 1",
}
CPU, GPU = (f"{FRAMEWORKS[0]}-{kind}.txt" for kind in ("cpu", "gpu"))

Setup = Callable[..., tuple[set[str], str]]


@pytest.fixture
def setup(project: Path, tmp_path: Path) -> Setup:  # noqa: F811
    """Return a runner of tools/setup.sh that returns installed files and messages."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)

    def run(**environment: str) -> tuple[set[str], str]:
        listed = project / "installed.txt"
        listed.unlink(missing_ok=True)
        path = f"{programs}:{os.environ['PATH']}"
        done = subprocess.run(
            ["tools/setup.sh"], cwd=project, env={"PATH": path} | environment, capture_output=True, text=True
        )
        assert (done.returncode != 0) == done.stderr.startswith("error: "), done.stderr
        return set(listed.read_text().split() if listed.exists() else ()), done.stderr

    return run


def test_packages_for_gpus_replace_those_for_cpus_only_if_they_are_requested(
    project: Path,  # noqa: F811
    setup: Setup,
) -> None:
    assert CPU in setup()[0]
    kept = project / ".venv" / "kept"
    kept.touch()
    assert setup(FRAMEWORK="all") == (set(), "")
    installed, note = setup(HAS_GPU="yes")
    assert installed == set() and note.endswith("this machine has a GPU: make setup WHEELS=gpu\n")
    installed, _ = setup(WHEELS="gpu")
    assert GPU in installed and CPU not in installed
    assert not kept.exists()  # pip would keep torch 2.13.0+cpu
    assert setup() == setup(WHEELS="gpu") == setup(HAS_GPU="yes") == (set(), "")
    assert CPU in setup(WHEELS="cpu", HAS_GPU="yes")[0]


def test_a_machine_with_a_gpu_gets_packages_for_it(setup: Setup) -> None:
    assert GPU in setup(HAS_GPU="yes")[0]


def test_a_new_engine_is_installed_without_the_packages(project: Path, setup: Setup) -> None:  # noqa: F811
    setup()
    for text in ("./wheels/a.whl\n", "./wheels/b.whl\n"):
        (project / "requirements/engine.txt").write_text(text)
        assert setup() == ({"engine.txt"}, "done: .venv is ready (source .venv/bin/activate)\n")
        assert setup() == (set(), "")


def test_lists_instead_of_locks_are_remembered(project: Path, setup: Setup) -> None:  # noqa: F811
    (project / "requirements/common.txt").write_text("mine==1\n")
    assert "common.txt" in setup(LOCKED="no")[0]
    assert setup() == (set(), "")
    assert "requirements/common.txt changed after its lock" in setup(LOCKED="yes")[1]


def test_what_is_refused_keeps_the_environment(project: Path, setup: Setup) -> None:  # noqa: F811
    setup()
    before = sorted(project.rglob(".venv/**/*"))
    assert "WHEELS=gpus: use WHEELS=cpu|gpu" in setup(WHEELS="gpus")[1]
    assert "needs Python 3.11, 3.12 or 3.13, and 'python3.14' is 3.14:" in setup(PYTHON="python3.14")[1]
    (project / ".venv/system").write_text("Linux riscv64, Python 3.11\n")
    assert ".venv is for Linux riscv64, Python 3.11, and this is " in setup()[1]
    (project / ".venv/system").unlink()
    (project / ".venv/bin/python").unlink()
    (project / ".venv/bin/python").symlink_to("/nowhere/python3")
    assert ".venv is for another system or a Python that is gone" in setup()[1]
    assert sorted(project.rglob(".venv/**/*")) == [p for p in before if p.name != "system"]


def test_make_uses_the_python_of_the_environment(project: Path) -> None:  # noqa: F811
    """A .venv of `make setup PYTHON=...` is used unless it belongs to another system."""
    command = ["make", "-n", "lock"]
    environ = {k: v for k, v in os.environ.items() if k not in ("PYTHON", "VIRTUAL_ENV", "CONDA_PREFIX")}

    def shown() -> str:
        return subprocess.run(command, cwd=project, env=environ, capture_output=True, text=True).stdout

    assert shown() == "python3 tools/lock.py \n"
    venv.create(project / ".venv", symlinks=True)
    assert shown() == ".venv/bin/python tools/lock.py \n"
    (project / ".venv/bin/python").unlink()
    (project / ".venv/bin/python").symlink_to("/nowhere/python3")
    assert shown() == "python3 tools/lock.py \n"
