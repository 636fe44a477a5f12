"""Fixtures for all tests: configurations, the command line, and missing tools."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from train_anywhere.config.command.command_line import to_hydra_overrides
from train_anywhere.config.command.compose import compose, quote_value
from train_anywhere.config.load import load
from train_anywhere.config.schema import Config
from train_anywhere.distributed.layout import local_layout
from train_anywhere.distributed.packages import framework_problem, horovod_problem
from train_anywhere.files import ROOT
from train_anywhere.launch.local_run import make_run as new_run
from train_anywhere.runs.folder import RunDir
from train_anywhere.slurm.rules.local_rules import SHARED_BY_TESTBED, TEMPORARY
from train_anywhere.slurm.testbed.testbed_config import describe_missing
from train_anywhere.testing import warm
from train_anywhere.testing.frameworks import FRAMEWORKS, PREFIXES

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


def require(there: object, what: str) -> None:
    """Skip the test if `there` is false. In CI a missing tool is a failure."""
    if there:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"missing in CI: {what}")
    pytest.skip(what)


def require_packages(stderr: str) -> None:
    """Skip if a command was refused because Horovod, a framework or an optional package is not installed."""
    optional = re.search(r"needs the package (\w+).*", stderr)
    if optional and not find_spec(optional[1]):
        pytest.skip(optional[0])
    for framework in FRAMEWORKS:
        horovod = [horovod_problem(framework, mpi=mpi) for mpi in (False, True)]
        for problem in filter(None, (framework_problem(framework), *horovod)):
            require(problem not in stderr, problem)


def missing_program(program: str, package: str) -> str | None:
    """Return what to install if a program is missing."""
    return None if shutil.which(program) else f"apt-get install {package}"


TOOLS: dict[str, Callable[[], str | None]] = {
    "slurm": lambda: describe_missing(accounting=True, ssh=True, pbs=True),
    "mpi": lambda: missing_program("mpirun", "openmpi-bin libopenmpi-dev, then `make horovod`"),
    "horovod": horovod_problem,
    "git": lambda: missing_program("git", "git"),
    "needs_root": lambda: None if os.getuid() == 0 else "run as root",
}
"""Functions by mark of a test that return what to install if the tool is missing."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose marks name a tool that is missing."""
    for problem in [problem() for mark, problem in TOOLS.items() if item.get_closest_marker(mark)]:
        require(problem is None, str(problem))


@pytest.fixture(scope="session", name="require")
def _require() -> Callable[[object, str], None]:
    """Return `require`, to be called as `require(condition, "install ...")`."""
    return require


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """Restore the environment after each test."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys() - {"PYTEST_CURRENT_TEST"}:
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(scope="session", autouse=True)
def warm_processes() -> Iterator[None]:
    """Start commands of this project as forks of warm processes (testing/warm.py)."""
    warm.ENVIRON.update(os.environ)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", warm.Popen)
        yield


@pytest.fixture(autouse=True)
def new_processes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start new interpreters in a test with the mark new_process."""
    if request.node.get_closest_marker("new_process"):
        monkeypatch.setattr(subprocess, "Popen", warm.NEW)


@pytest.fixture(scope="session", autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the record of trusted values out of the home of the user who runs the tests."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session", autouse=True)
def shared_project(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Count the project as shared if it is in /tmp, and return PATH without that."""
    path = os.environ["PATH"]
    if ROOT.is_relative_to(TEMPORARY) or Path(sys.prefix).is_relative_to(TEMPORARY):
        top = tmp_path_factory.mktemp("shared")
        (top / SHARED_BY_TESTBED).parent.mkdir(parents=True)
        (top / SHARED_BY_TESTBED).write_text(f"{ROOT}\n{sys.prefix}\n")
        os.environ["PATH"] += f"{os.pathsep}{top / 'bin'}"
    return path


@pytest.fixture(scope="session")
def make_config() -> Callable[..., Config]:
    """Return a function for the configuration of a command line."""
    return lambda *overrides: load(compose([quote_value(word) for word in to_hydra_overrides(overrides)]))


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., tuple[Config, RunDir]]:
    """Return a function for a configuration and a new run folder with it."""

    def make(*overrides: str) -> tuple[Config, RunDir]:
        config = load(compose([*to_hydra_overrides(overrides), f"paths.results={tmp_path / 'results'}"]))
        return config, new_run(config, overrides, local_layout(config))

    return make


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


@pytest.fixture
def small_disk(tmp_path: Path, require: Callable[[object, str], None]) -> Iterator[Path]:
    """Mount a disk of 1 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)], capture_output=True
    )
    require(mounted.returncode == 0, "run as root: the test mounts a small disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
