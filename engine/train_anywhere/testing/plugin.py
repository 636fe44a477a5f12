"""Fixtures for the tests of a project: configurations, the command line, and frameworks that are not installed."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from train_anywhere.config.checks.strategy_table import SUPPORTED
from train_anywhere.config.command.command_line import to_hydra_overrides
from train_anywhere.config.command.compose import compose
from train_anywhere.config.load import load
from train_anywhere.config.schema import Config
from train_anywhere.distributed.packages import framework_problem
from train_anywhere.files import ROOT

FRAMEWORKS = tuple(SUPPORTED)
PREFIXES = {"torch": "lightning", "tf": "keras"}
"""Prefixes of the names of files that are for one framework."""

if os.environ.get("TMPDIR", "/tmp").startswith("/tmp"):
    tempfile.tempdir = (
        "/var/tmp"  # a job is refused if its results are in /tmp, of which each node has its own
    )
for name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "ARGS"):
    os.environ.pop(name, None)  # a test that calls make should not get the options of `make test ARGS=...`
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # several tests run at the same time


def find_framework(path: Path) -> str | None:
    """Return the framework that a test file is for, or None for both."""
    name = PREFIXES.get(path.stem.removeprefix("test_").partition("_")[0], "")
    parts = {*path.relative_to(ROOT).parts, name}
    return next((framework for framework in FRAMEWORKS if framework in parts), None)


def missing_framework_message(framework: str | None) -> str:
    """Return how to install a framework that this environment does not have, or ""."""
    return framework_problem(framework) if framework else ""


class SkippedModule(pytest.Module):
    """A test file for a framework that is not installed, so it is not imported."""

    def collect(self) -> list[pytest.Item]:
        """Skip the file."""
        pytest.skip(missing_framework_message(find_framework(self.path)), allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Skip the test files of a framework that `make setup FRAMEWORK=...` did not install."""
    if missing_framework_message(find_framework(module_path)):
        return SkippedModule.from_parent(parent, path=module_path)
    return None


@pytest.hookimpl(tryfirst=True)  # before pytest applies -m
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests with a missing framework, and mark cases slow that `quick` does not name."""
    mark_slow(items)
    for item in items:
        values = getattr(getattr(item, "callspec", None), "params", {}).values()
        used = {v for v in values if isinstance(v, str) and v in FRAMEWORKS}
        if reasons := sorted(filter(None, map(missing_framework_message, used))):
            item.add_marker(pytest.mark.skip(reason=reasons[0]))


def mark_slow(items: list[pytest.Item]) -> None:
    """Mark slow each case that the mark `quick` of its test does not name."""
    cases: dict[str, dict[str, pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("quick"):
            cases.setdefault(item.nodeid.partition("[")[0], {})[item.callspec.id] = item  # type: ignore[attr-defined]
    for test, found in cases.items():
        named = next(iter(found.values())).get_closest_marker("quick").args  # type: ignore[union-attr]
        if len(found) > 1 and (unknown := {*named} - {*found}):
            raise pytest.UsageError(
                f"{test}: quick names {sorted(unknown)}, and its cases are {sorted(found)}"
            )
        for name in {*found} - {*named}:
            found[name].add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """Restore the environment after each test."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys() - {"PYTEST_CURRENT_TEST"}:
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(scope="session", autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the record of trusted values out of the home of the user who runs the tests."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session")
def make_config() -> Callable[..., Config]:
    """Return a function for the configuration of a command line."""
    return lambda *overrides: load(compose(to_hydra_overrides(overrides)))


Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def train() -> Command:
    """Return a function that runs `python src/train.py`: `train("model=mlp")`."""

    def run(
        *arguments: str, python: Sequence[str] = (), env: dict[str, str] | None = None, timeout: float = 300
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *python, str(ROOT / "src" / "train.py"), *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)

    return run
