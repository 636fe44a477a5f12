"""A Python without the project's packages, or with too old ones, gets one message."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tools.testing.processes import run_python
from train_anywhere import commands
from train_anywhere.files import ROOT

DECLARED = tomllib.loads((ROOT / "engine/pyproject.toml").read_text())["project"]
OPTIONAL = {"pynvml", "horovod", "onnxruntime"}
"""Modules that the engine imports if they are installed."""
INSTALLED = packages_distributions()
WITH_ANOTHER = {"torchmetrics": "lightning", "lightning_utilities": "lightning"}
"""Modules that come with a package that is declared."""


def name(requirement: str) -> str:
    return re.split(r"[<>=!\[; ]", requirement)[0].lower().replace("_", "-")


def distributions(module: str) -> set[str]:
    return {name(found) for found in INSTALLED.get(module, [module])}


def imported() -> set[str]:
    found = set()
    for path in (ROOT / "engine/train_anywhere").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return found - {*sys.stdlib_module_names, "train_anywhere"}


def test_each_package_that_the_engine_imports_is_declared() -> None:
    required = {*map(name, DECLARED["dependencies"])}
    declared = required | {name(one) for more in DECLARED["optional-dependencies"].values() for one in more}
    modules = {WITH_ANOTHER.get(module, module) for module in imported() - OPTIONAL}
    assert {module for module in modules if not distributions(module) & declared} == set()
    assert {module for module in modules if distributions(module) & required} == commands.PACKAGES


SCRIPTS = (
    "src/train.py", "-m src.train",
    "src/train.py trainer.max_epochs=x", "src/run.py -- x.py", "src/evaluate.py x", "slurm/new_cluster.py",
)  # fmt: skip


@pytest.mark.parametrize("command", SCRIPTS)
def test_a_python_without_packages_gets_one_message(command: str, tmp_path: Path) -> None:
    done = run_python("-S", *command.split(), env={"PATH": "/usr/bin", "HOME": str(tmp_path)})
    assert done.returncode == 2
    assert re.fullmatch(
        r"error: \w+ is not installed for this Python \(\S+\); use the project's: `source .venv/bin/activate` "
        r"\(`make setup` creates it\)\.\n",
        done.stderr,
    )


@pytest.mark.parametrize(
    "path", ["src/__init__.py", "src/train.py", "src/jobs.py", "engine/train_anywhere/__init__.py"]
)
def test_an_old_python_can_read_the_check_of_its_version(path: str) -> None:
    ast.parse((ROOT / path).read_text(), feature_version=(3, 7))


def test_an_old_python_gets_one_message() -> None:
    code = "import sys; sys.version_info = (3, 9, 18, 'final', 0); import src"
    done = run_python("-S", "-c", f"import sys; sys.path[:0] = ['.', 'engine']; {code}")
    assert done.returncode == 2
    assert re.fullmatch(
        r"error: train_anywhere needs Python 3\.11 or newer, and \S+ is 3\.9; use .*\n", done.stderr
    )
