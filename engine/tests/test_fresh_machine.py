"""Without Horovod, Slurm, Open MPI or root, tests are skipped with what to install."""

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import which

import pytest

from engine.tests.confined import works
from engine.tests.without import without
from train_anywhere.files import ROOT

TESTBED = (
    "engine/tests/slurm/test_testbed_command.py", "engine/tests/slurm/test_topology.py", "engine/tests/slurm/test_presets.py",
)  # fmt: skip
TESTS = {
    "horovod": (
        "tests/template/test_readme.py",
        "engine/tests/distributed/test_horovod_init.py",
        "engine/tests/tools/test_build_horovod.py",
        "engine/tests/slurm/test_program.py",
        "-k=horovod or scaling or fails_the_job",
    ),
    "slurm": ("engine/tests/distributed/test_hostlist.py", "engine/tests/properties/test_ranks.py", *TESTBED),
    "mpi": (
        "engine/tests/distributed/test_layout.py",
        "engine/tests/slurm/test_topology.py",
        "engine/tests/slurm/test_cluster_runs.py",
        "-k=layout or mpirun or pbs_on_debian",
    ),
    "root": (
        "engine/tests/checkpoints/test_staging.py",
        "engine/tests/config/test_folders.py",
        "engine/tests/files/test_removal.py",
        *TESTBED,
    ),
    "git": ("engine/tests/slurm/test_git.py", "engine/tests/tools/test_project.py", "engine/tests/slurm/test_presets.py"),
    **dict.fromkeys(("munge", "iproute2", "openssh-server", "slurmdbd", "mariadb-server-core"), TESTBED),
}  # fmt: skip
"""Tests that need a tool, and others near them that do not."""


@pytest.fixture
def scratch(require: Callable[[object, str], None]) -> Iterator[Path]:
    """Return a folder that other users can read too."""
    able = os.getuid() == 0 and os.access("/var/tmp", os.W_OK) and which("dpkg") and which("setpriv")
    require(able, "run as root on Debian: the test hides programs in a mount namespace")
    # not below /tmp: that is `cluster.local_disk`, and HOME is in it
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        require(works(folder), "run as root, with unshare and mount: apt install util-linux mount")
        yield folder


def counts(scratch: Path, tools: list[str], *arguments: str, timeout: float = 500) -> dict[str, int]:
    """Run pytest without these tools and return its last line: the number of each outcome."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rfE",
        "-p",
        "no:cacheprovider",
        "-m",
        "not slow",
        *arguments,
    ]
    done = without(scratch, tools, command, timeout)
    found = {
        word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error|skipped)", done.stdout)
    }
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return found


@pytest.mark.parametrize("tool", TESTS)
@pytest.mark.quick("root")
def test_what_needs_a_missing_tool_is_skipped(scratch: Path, tool: str) -> None:
    found = counts(scratch, [tool], *TESTS[tool])
    assert found["skipped"] and found.keys() <= {"passed", "skipped"}, found


@pytest.mark.slow
@pytest.mark.alone  # it runs all of `make test`
@pytest.mark.timeout(7200)
def test_make_test_passes_without_any_tool(scratch: Path) -> None:
    arguments = ("-n", "3", "--dist", "worksteal", f"--ignore={Path(__file__).relative_to(ROOT)}")
    found = counts(scratch, ["horovod", "slurm", "mpi", "root"], *arguments, timeout=7000)
    assert found["passed"] > 1000 and found["skipped"] > 50, found
