"""The first command at a site that requires a comment is refused once with the fix."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from engine.tests.slurm.login import Login
from tools.testbed.testbed_cluster import Testbed
from tools.testing.projects import copy_project


@pytest.fixture(scope="module")
def clone() -> Iterator[Path]:
    """Return a copy of this project without local settings on a disk for jobs."""
    folder = Path(
        copy_project(Path(subprocess.check_output(["mktemp", "-d", "-p", "/var/tmp"], text=True).strip()))
    )
    yield folder
    shutil.rmtree(folder.parent)


@pytest.fixture
def own(clone: Path) -> Iterator[Path]:
    """Return the file of the user's settings, which does not exist."""
    file = clone / "configs" / "local" / "neuron.yaml"
    file.unlink(missing_ok=True)
    yield file
    file.unlink(missing_ok=True)


def activated(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which `python` is this one."""
    return {**environ, "PATH": f"{Path(sys.executable).parent}:{environ['PATH']}"}


def run(clone: Path, *words: str, shell: str = "") -> subprocess.CompletedProcess[str]:
    """Run a script of the clone, or a line of a shell with this Python on PATH."""
    command = ["bash", "-c", shell] if shell else [sys.executable, *words]
    return subprocess.run(
        command, cwd=clone, env=activated(os.environ), capture_output=True, text=True, timeout=120
    )


def printed_command(message: str) -> str:
    """Return the only command that a message prints."""
    (command,) = re.findall("`([^`]+)`", message)
    return str(command)


@pytest.mark.slurm
@pytest.mark.needs_root
def test_it_is_refused_once_and_then_submits(
    testbed_for: Callable[..., Testbed], shared_dir: Path, clone: Path, own: Path
) -> None:
    testbed = testbed_for("neuron")
    login = Login(testbed, shared_dir, root=clone)
    words = ("cluster=neuron", "trainer.nodes=4", f"paths.results={login.results}")
    refused = login.command("train", *words)
    assert refused.returncode == 2 and len(re.findall("^error: ", refused.stderr, re.M)) == 1, refused.stderr
    assert not login.results.exists() and not own.exists()
    kept = subprocess.run(
        ["bash", "-c", printed_command(refused.stderr)],
        cwd=login.folder,
        env=activated(testbed.env()),
        stdin=subprocess.DEVNULL,
    )
    assert kept.returncode == 0 and own.read_text() == 'comment: "field=nlp;appl=pytorch"\n'
    done = login.command("train", *words)
    assert done.returncode == 0, done.stderr
    (job,) = re.findall(r"^Submitted job (\d+) to neuron: 4 nodes, 32 ranks", done.stdout)
    assert "Comment=field=nlp;appl=pytorch" in testbed.run(["scontrol", "show", "job", job]).stdout
    testbed.run(["scancel", job])


def test_the_form_of_the_guide_is_accepted_if_the_rule_allows_it(clone: Path) -> None:
    rule = "cluster.site.comment='field=.+;appl=.+|pytorch'"
    done = run(clone, "src/train.py", "cluster=neuron", "dry_run=true", "cluster.comment=pytorch", rule)
    assert done.returncode == 0 and "#SBATCH --comment=pytorch" in done.stdout, done.stderr


def test_the_option_of_earlier_versions_names_the_file(clone: Path) -> None:
    done = run(clone, "slurm/new_cluster.py", "neuron", "--local", "account=a")
    assert done.returncode == 2 and "write the lines into configs/local/neuron.yaml" in done.stderr
