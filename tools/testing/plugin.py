"""Fixtures and marks for the tests of the template and the engine: missing tools, warm processes, small disks."""

import gc
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tools.testbed.testbed_config import describe_missing
from tools.testing import composing, warm
from train_anywhere.config.command.command_line import to_hydra_overrides
from train_anywhere.config.command.compose import compose
from train_anywhere.config.load import load
from train_anywhere.config.schema import Config
from train_anywhere.distributed.layout import local_layout
from train_anywhere.distributed.packages import framework_problem, horovod_problem
from train_anywhere.files import ROOT
from train_anywhere.launch.fork_main import changed_at_import
from train_anywhere.launch.local_run import make_run as new_run
from train_anywhere.runs.folder import RunDir
from train_anywhere.slurm.rules.local_rules import SHARED_BY_TESTBED, TEMPORARY
from train_anywhere.testing.plugin import FRAMEWORKS

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = (
    False  # else hundreds of processes, in copies of the project too, compile the same files
)


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


_loaded: set[str] = set()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose marks name a tool that is missing.

    Before it, undo what a fixture of a module or of the session has left in the environment, with which no command could be a fork, and
    spare the collector the objects of a framework that was imported.
    """
    for name in changed_at_import(os.environ, warm.ENVIRON) if warm.ENVIRON else ():
        os.environ.pop(name, None)
        os.environ.update({name: warm.ENVIRON[name]} if name in warm.ENVIRON else {})
    if new := sys.modules.keys() & {"torch", "lightning", "tensorflow", "keras"} - _loaded:
        _loaded.update(new)
        gc.collect()
        gc.freeze()
    for problem in [problem() for mark, problem in TOOLS.items() if item.get_closest_marker(mark)]:
        require(problem is None, str(problem))


@pytest.fixture(scope="session", name="require")
def _require() -> Callable[[object, str], None]:
    """Return `require`, to be called as `require(condition, "install ...")`."""
    return require


@pytest.fixture(scope="session", autouse=True)
def warm_processes() -> Iterator[None]:
    """Start commands of this project as forks of warm processes (tools/testing/warm.py)."""
    warm.ENVIRON.update(os.environ)
    composing.remember_files()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", warm.Popen)
        yield


@pytest.fixture(autouse=True)
def new_processes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start new interpreters in a test with the mark new_process."""
    if request.node.get_closest_marker("new_process"):
        monkeypatch.setattr(subprocess, "Popen", warm.NEW)


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


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., tuple[Config, RunDir]]:
    """Return a function for a configuration and a new run folder with it."""

    def make(*overrides: str) -> tuple[Config, RunDir]:
        config = load(compose([*to_hydra_overrides(overrides), f"paths.results={tmp_path / 'results'}"]))
        return config, new_run(config, overrides, local_layout(config))

    return make


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
