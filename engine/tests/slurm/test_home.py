"""A home that is a link on the login node, and a mount on nodes without the link's target."""

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.tests.slurm.login import SMALL, log
from tools.testbed.testbed_cluster import Testbed
from tools.testing.projects import copy_project
from tools.testing.weights import info

pytestmark = [pytest.mark.slurm, pytest.mark.needs_root]

MOUNT = """
umount -l /run/u 2>/dev/null || true
mkdir -p /run/u
mount --bind "$1/export/u" /run/u
mount -t tmpfs homes "$1/homes"
mkdir "$1/homes/u"
mount --bind /run/u "$1/homes/u"
mount -t tmpfs export "$1/export"
"""


@pytest.fixture
def project(testbed_for: Callable[..., Testbed], shared_dir: Path) -> Path:
    """The project in a home that is a link here."""
    testbed = testbed_for("slurm", nodes=1)
    (shared_dir / "export" / "u").mkdir(parents=True)
    (shared_dir / "homes").mkdir()
    (shared_dir / "homes" / "u").symlink_to("../export/u")
    copy_project(shared_dir / "export" / "u")
    for node in testbed.nodes:
        done = testbed.run(["bash", "-ec", MOUNT, "-", str(shared_dir)], node=node)
        assert done.returncode == 0, done.stderr
    return shared_dir / "homes" / "u" / "project"


def typed(testbed: Testbed, folder: Path, *words: str) -> str:
    """Return the output of a command that is typed in a folder."""
    environ = {**testbed.env(), "OMP_NUM_THREADS": "1", "PWD": str(folder)}
    done = subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("results", ["", pytest.param("paths.results=out", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_job_of_a_home_that_is_a_link_finds_its_files(
    testbed_for: Callable[..., Testbed], project: Path, results: str
) -> None:
    testbed = testbed_for("slurm", nodes=1)
    words = ["cluster=slurm", "trainer.accelerator=cpu", *SMALL, *([results] if results else [])]
    python, program = ".venv/bin/python", "src/train.py"
    said = typed(testbed, project, python, program, *words)
    job = re.match(r"Submitted job (\d+)", said)
    assert job, said
    [run] = (project / (results.partition("=")[2] or "results")).glob("*/2*")
    script = (run / "job.sbatch").read_text()
    assert "/export/" not in script and f"{project}/.venv/bin/python" in script
    assert "/export/" not in (run / "config.yaml").read_text()
    assert testbed.wait_job(job[1], 240) == "COMPLETED", log(run)
    assert info(run)["state"] == "completed"
    assert os.readlink(run.parent.parent / "latest") == f"{run.parent.name}/{run.name}"
    # again, from another folder below the same link, by the link to the newest run
    here, up = project / "src", os.path.relpath(run.parent.parent / "latest", project / "src")
    said = typed(
        testbed, here, f"../{python}", "train.py", f"resume={up}", "cluster=slurm", "trainer.max_epochs=2"
    )
    job = re.match(r"Submitted job (\d+)", said)
    assert job, said
    assert testbed.wait_job(job[1], 240) == "COMPLETED", log(run)
    assert "/export/" not in (run / "job.sbatch").read_text()
    status = typed(testbed, project, python, "src/jobs.py", "status", "--results", str(run.parent.parent))
    assert f"Run folder:  {run.relative_to(project)}\n" in status
