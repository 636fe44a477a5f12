"""tools/setup.sh and an active environment: installed packages, the memory of .venv, and refusals."""

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.environment import LISTS, pins
from train_anywhere.files import ROOT

FRAMEWORKS = sorted(path.parent.name for path in ROOT.glob("src/models/*/__init__.py"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return the files that `make setup` reads, without a .venv."""
    made = tmp_path / "project"
    for name in ("tools", "requirements"):
        shutil.copytree(ROOT / name, made / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FRAMEWORKS:
        (made / "src/models" / name).mkdir(parents=True)
        (made / "src/models" / name / "__init__.py").touch()
    shutil.copy(ROOT / "Makefile", made)
    return made


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """Return an environment in which each package of one framework is recorded as installed."""
    made = tmp_path / "env"
    venv.create(made, symlinks=True)
    for name in ("common", "dev", *(f"{FRAMEWORKS[0]}{end}" for end in ("", "-dev", "-cpu"))):
        for pin in pins(name):
            package, version = pin.split("==")
            info = packages(made) / f"{package}-{version}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    return made


def packages(prefix: Path) -> Path:
    return next(prefix.glob("lib/python*/site-packages"))


def make(project: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    command = ["make", "--no-print-directory", f"PYTHON={sys.executable}", *words]
    return subprocess.run(
        command, cwd=project, capture_output=True, text=True, env=kept | environment, timeout=60
    )


@pytest.mark.parametrize("variable", ["CONDA_PREFIX", "VIRTUAL_ENV"])
def test_one_that_has_all_is_used_and_nothing_is_installed(project, prefix, variable):
    done = make(project, "setup", **{variable: str(prefix)})
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not (project / ".venv").exists()
    assert (
        f"{prefix}/bin/python src/train.py" in make(project, "-n", "train", **{variable: str(prefix)}).stdout
    )
    assert ".venv/bin/python src/train.py" in make(project, "-n", "train").stdout


def test_one_that_lacks_a_package_or_a_version_is_not(project: Path, prefix: Path) -> None:
    pin = next(pins("common"))
    package, version = pin.split("==")
    there = packages(prefix) / f"{package}-{version}.dist-info"
    (there / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1\n")
    done = make(project, "-n", "train", CONDA_PREFIX=str(prefix))
    assert ".venv/bin/python src/train.py" in done.stdout
    assert done.stderr == f"the active environment {prefix} lacks {pin}: using .venv instead\n"


@pytest.mark.skipif(len(FRAMEWORKS) == 1, reason="one framework alone is left")
def test_the_framework_that_is_asked_for_has_to_be_there(project: Path, prefix: Path) -> None:
    done = make(project, "-n", "train", f"FRAMEWORK={FRAMEWORKS[1]}", CONDA_PREFIX=str(prefix))
    assert f"lacks {next(pins(FRAMEWORKS[1]))}" in done.stderr


def test_every_list_is_in_the_environment_for_conda() -> None:
    named = (ROOT / "environment.yml").read_text()
    lists = {path.name for path in LISTS.glob("*.txt")} - {path.name for path in LISTS.glob("*-gpu.txt")}
    assert {name for name in lists if f"-r requirements/{name}" not in named} <= {"docs.txt", "finetune.txt"}


PROGRAMS = {
    "uv": 'for word; do case "$word" in --requirement=*) echo "${word##*/}" >>installed.txt ;; esac; done',
    "nvidia-smi": '[ -n "${HAS_GPU:-}" ] && echo "GPU 0: NVIDIA H100"',
    "python3": f'[ "$1 $2" = "-m venv" ] || exec {sys.executable} "$@"; shift 2; exec {sys.executable} -m venv --without-pip "$@"',
    "python3.14": "echo 3.14; exit 1",
}
CPU, GPU = (f"{FRAMEWORKS[0]}-{kind}.txt" for kind in ("cpu", "gpu"))

Setup = Callable[..., tuple[set[str], str]]


@pytest.fixture
def setup(project: Path, tmp_path: Path) -> Setup:
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


def test_packages_for_gpus_replace_those_for_cpus_only_if_they_are_requested(project, setup):
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


def test_a_new_engine_is_installed_without_the_packages(project: Path, setup: Setup) -> None:
    setup()
    for text in ("./wheels/a.whl\n", "./wheels/b.whl\n"):
        (project / "requirements/engine.txt").write_text(text)
        assert setup() == ({"engine.txt"}, "done: .venv is ready (source .venv/bin/activate)\n")
        assert setup() == (set(), "")


def test_lists_instead_of_locks_are_remembered(project: Path, setup: Setup) -> None:
    (project / "requirements/common.txt").write_text("mine==1\n")
    assert "common.txt" in setup(LOCKED="no")[0]
    assert setup() == (set(), "")
    assert "requirements/common.txt changed after its lock" in setup(LOCKED="yes")[1]


def test_what_is_refused_keeps_the_environment(project: Path, setup: Setup) -> None:
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


def test_make_uses_the_python_of_the_environment(project: Path) -> None:
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
