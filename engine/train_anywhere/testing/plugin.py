"""Fixtures for every test: composed configurations, the command line as a user types it, and tools that may be missing."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from train_anywhere.config.command.command_line import opened
from train_anywhere.config.command.compose import compose
from train_anywhere.config.load import load
from train_anywhere.config.schema import Config
from train_anywhere.distributed.horovod.installation import horovod_problem
from train_anywhere.distributed.layout import local_layout
from train_anywhere.distributed.packages import missing_framework
from train_anywhere.files import ROOT
from train_anywhere.launch.local_run import make_run as new_run
from train_anywhere.runs.folder import RunDir
from train_anywhere.slurm.testbed.requirements import missing
from train_anywhere.testing import warm
from train_anywhere.testing.frameworks import FRAMEWORKS, PREFIXES

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # several tests run at the same time


def side_of(path: Path) -> str | None:
    """The framework that a file of tests is for, by its place or its name."""
    name = PREFIXES.get(path.stem.removeprefix("test_").partition("_")[0], "")
    parts = {*path.relative_to(ROOT).parts, name}
    return next((framework for framework in FRAMEWORKS if framework in parts), None)


def not_installed(framework: str | None) -> str:
    """What to type for a framework that this environment was made without; "" if nothing."""
    return missing_framework(framework) if framework else ""


class Left(pytest.Module):
    """A file of tests for a framework that is not installed: it is not imported."""

    def collect(self) -> list[pytest.Item]:
        """Skip it."""
        pytest.skip(not_installed(side_of(self.path)), allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """A framework that `make setup FRAMEWORK=...` left out has its tests skipped."""
    if not_installed(side_of(module_path)):
        return Left.from_parent(parent, path=module_path)
    return None


@pytest.hookimpl(tryfirst=True)  # before pytest looks at -m
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip single tests for a missing framework, by their parameters; make the cases slow that the mark `quick` leaves out."""
    mark_slow(items)
    for item in items:
        values = getattr(getattr(item, "callspec", None), "params", {}).values()
        asked = {v for v in values if isinstance(v, str) and v in FRAMEWORKS}
        if reasons := sorted(filter(None, map(not_installed, asked))):
            item.add_marker(pytest.mark.skip(reason=reasons[0]))


def mark_slow(items: list[pytest.Item]) -> None:
    """Give the mark slow to each case of a test with the mark quick that it does not name. Raises UsageError for an unknown name."""
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
    """Skip with one line that says what to install; in CI a missing tool is a failure."""
    if there:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"missing in CI: {what}")
    pytest.skip(what)


def require_packages(stderr: str) -> None:
    """Skip if a command was refused because Horovod or a framework is not installed in this environment."""
    for framework in FRAMEWORKS:
        horovod = [horovod_problem(framework, mpi=mpi) for mpi in (False, True)]
        for problem in filter(None, (missing_framework(framework), *horovod)):
            require(problem not in stderr, problem)


def which(program: str, package: str) -> str | None:
    """Return what to install if a program is missing."""
    return None if shutil.which(program) else f"apt-get install {package}"


TOOLS: dict[str, Callable[[], str | None]] = {
    "slurm": lambda: missing(accounting=True, ssh=True, pbs=True),
    "mpi": lambda: which("mpirun", "openmpi-bin libopenmpi-dev, then `make horovod`"),
    "horovod": horovod_problem,
    "git": lambda: which("git", "git"),
    "needs_root": lambda: None if os.getuid() == 0 else "run as root",
}
"""What a test with such a mark needs, and what to do if it is missing."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose marks name a tool that is missing."""
    for problem in [problem() for mark, problem in TOOLS.items() if item.get_closest_marker(mark)]:
        require(problem is None, str(problem))


@pytest.fixture(scope="session", name="require")
def _require() -> Callable[[object, str], None]:
    """`require(condition, "install ...")`."""
    return require


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """What a test, or a framework in it, writes into the environment ends with it: MASTER_ADDR would go into jobs."""
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
    """What this user has let run is not recorded in the home of who tests."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session")
def make_config() -> Callable[..., Config]:
    """`make_config("data=mnist", "seed=3")`: the typed configuration that a command line gives."""
    return lambda *overrides: load(compose(opened(overrides)))


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., tuple[Config, RunDir]]:
    """`make_run("data=mnist")`: a configuration and a new run folder that holds it, as `src/train.py` makes one."""

    def make(*overrides: str) -> tuple[Config, RunDir]:
        config = load(compose([*opened(overrides), f"paths.results={tmp_path / 'results'}"]))
        return config, new_run(config, overrides, local_layout(config))

    return make


Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def train() -> Command:
    """`train("model=mlp")`: run `python src/train.py ...` and return what it printed and its exit code."""

    def run(
        *arguments: str, python: Sequence[str] = (), env: dict[str, str] | None = None, timeout: float = 300
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *python, str(ROOT / "src" / "train.py"), *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)

    return run


@pytest.fixture
def small_disk(tmp_path: Path, require: Callable[[object, str], None]) -> Iterator[Path]:
    """A disk of 1 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)], capture_output=True
    )
    require(mounted.returncode == 0, "run as root: the test mounts a small disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
