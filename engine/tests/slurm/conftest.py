"""Real Slurm clusters for the tests, separate for every pytest worker.

    testbed              4 nodes of the site `slurm`, up for the whole session
    newer_slurm          the same with the Slurm of a newer Debian
    testbed_for(site)    the same for another site; keywords as for tools.testbed.testbed_cluster.Testbed
    login                a person on its login node, with a new shared_dir
    project              the folder of a small project, for snapshots
    on_again             nodes that the test powers off are on again at its end
    slow_steps           an override with which jobs train slowly, even on a fast machine
    shared_dir           an empty folder that all nodes of all testbeds see (they don't see pytest's tmp_path)

A test that powers a node off boots it again. Testbeds end with pytest, however it ends.
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.tests.slurm.fakes import Fakes
from engine.tests.slurm.login import Login, set_step_seconds
from engine.tests.slurm.scripts import SCRATCH, Ask, Scripts
from tools.testbed.testbed_cluster import Testbed
from tools.testbed.testbed_config import describe_missing
from train_anywhere.config.schema import Config
from train_anywhere.slurm.rules.job_rules import Request
from train_anywhere.slurm.submission.prepare import placeholder_job
from train_anywhere.training.preflight import data_problems

MAKE_ROOT = Path(__file__).with_name("make_root.sh")

SLOW_STEPS = """
import builtins, sys, time
from pathlib import Path
seconds = Path(__file__).with_name("step_seconds")
found = builtins.__import__

def looked_at(stop):
    time.sleep(float(seconds.read_text()))
    return stop.__dict__.get("requested")

def importing(name, *arguments, **options):
    module = found(name, *arguments, **options)
    if name == "train_anywhere.job.rank_process":
        builtins.__import__ = found
        sys.modules[name].Stop.requested = property(looked_at, lambda stop, value: stop.__dict__.update(requested=value))
    return module

if "--run" in sys.orig_argv or "fork_main" in str(sys.orig_argv):
    builtins.__import__ = importing
"""


@pytest.fixture(scope="session")
def slurm_root() -> Iterator[Path]:
    """Return a folder for this session's testbeds and shared folders, readable by their users."""
    root = Path(tempfile.mkdtemp(prefix="slurm-testbed-tests-"))
    root.chmod(0o755)
    (root / "shared").mkdir()
    yield root
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(scope="session")
def testbed_for(slurm_root: Path, require: Callable[[object, str], None]) -> Iterator[Callable[..., Testbed]]:
    """Start the testbed of a site, or return the one that is up with the same arguments."""
    up: dict[tuple[object, ...], Testbed] = {}

    def start(site: str = "slurm", **options: Any) -> Testbed:
        key = (site, *sorted(options.items()))
        if key not in up:
            problem = describe_missing(accounting=True, ssh=True, pbs=True)
            require(problem is None, str(problem))
            folder = slurm_root / f"testbed-{len(up)}"
            up[key] = Testbed(folder, site=site, share=[slurm_root / "shared"], **options)
            up[key].up()
        return up[key]

    yield start
    for testbed in up.values():
        testbed.down()


@pytest.fixture(scope="session")
def testbed(testbed_for: Callable[..., Testbed]) -> Testbed:
    """Four nodes with eight untyped GPUs each."""
    return testbed_for("slurm")


@pytest.fixture(scope="session")
def newer_slurm(testbed_for: Callable[..., Testbed], require: Callable[[object, str], None]) -> Testbed:
    """The same with the Slurm of a newer Debian, in a folder that is made once for this user."""
    recipe = hashlib.sha256(MAKE_ROOT.read_bytes()).hexdigest()[:8]
    folder = str(Path.home() / ".cache" / "slurm-testbed" / f"root-{recipe}")
    made = subprocess.run(["bash", str(MAKE_ROOT), folder], stderr=subprocess.PIPE, text=True)
    require(made.returncode == 0, made.stderr.strip())
    return testbed_for("slurm", root=folder)


@pytest.fixture
def shared_dir(slurm_root: Path) -> Iterator[Path]:
    """Return an empty folder on storage that every node sees and any user may write to."""
    folder = Path(tempfile.mkdtemp(dir=slurm_root / "shared"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def login(testbed: Testbed, shared_dir: Path) -> Login:
    """The project's commands on the testbed of `slurm`."""
    return Login(testbed, shared_dir)


@pytest.fixture
def on_again(testbed: Testbed) -> Iterator[None]:
    """Nodes that the test powers off are on and idle at its end."""
    yield
    for node in testbed.nodes:
        if not testbed.machines.pid(node):
            testbed.boot_node(node)
    idle = ["sinfo", "--noheader", "--partition=main", "--states=idle", "--format=%D"]
    testbed.machines.wait_for(lambda: testbed.run(idle).stdout.strip() == "4", "the nodes did not come back")


@pytest.fixture
def slow_steps(shared_dir: Path) -> str:
    """Slow each step to at least 50 ms, so that a test meets a job in mid-training.

    Or as long as `shared_dir / "step_seconds"` requests.
    """
    set_step_seconds(shared_dir, "0.05")
    (shared_dir / "sitecustomize.py").write_text(SLOW_STEPS)  # Python runs it at its start
    return f'cluster.setup=["export PYTHONPATH={shared_dir}"]'


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a project of a few files, not yet under git."""
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "src" / "a.py").write_text("a = 1\n")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / ".gitignore").write_text("/ignored/\n")
    (root / "ignored").mkdir()
    (root / "ignored" / "big.bin").write_text("x")
    return root


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fakes:
    """Return stand-ins for Slurm's clients, first on PATH."""
    fakes = Fakes(tmp_path)
    monkeypatch.setenv("PATH", f"{fakes.folder}:{os.environ['PATH']}")
    return fakes


@pytest.fixture
def scripts(make_config: Callable[..., Config], tmp_path: Path) -> Scripts:
    """Scripts of jobs, run in a new folder."""
    return Scripts(make_config, tmp_path)


@pytest.fixture
def ask(make_config: Callable[..., Config]) -> Ask:
    """Return a function for the request of a job with a line of keys."""

    def ask(line: str, folder: str = "/home/me") -> Request:
        config = make_config(*shlex.split(line))
        members = range(2) if "sweep" in line else None
        return Request(config, placeholder_job(config, None, members), data_problems, Path(folder), SCRATCH)

    return ask
