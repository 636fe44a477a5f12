"""An active environment with all packages is used by every target, and another is not."""

import os
import shutil
import subprocess
import sys
import venv
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
def test_one_that_has_all_is_used_and_nothing_is_installed(
    project: Path, prefix: Path, variable: str
) -> None:
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
