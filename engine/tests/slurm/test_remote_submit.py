"""A job of two nodes is submitted, watched and fetched through a real sshd."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.tests.remote.conftest import Laptop, Site
from engine.tests.slurm.login import SMALL
from engine.tests.slurm.scripts import tool
from tools.testbed.testbed_cluster import Testbed
from tools.testing.processes import wait_until
from tools.testing.projects import copy_project

pytestmark = [pytest.mark.slurm, pytest.mark.git, pytest.mark.slow, pytest.mark.new_process]


@pytest.fixture
def reached(testbed: Testbed, shared_dir: Path, tmp_path: Path) -> Iterator[tuple[Laptop, Site]]:
    """A laptop, and a login node of the testbed."""
    home = shared_dir / "home"
    home.mkdir()
    python = home / "python"  # with the PATH of the login node, which the profile of a site sets
    tool(python, f"PATH='{testbed.env()['PATH']}' exec {sys.executable} \"$@\"")
    site = Site(home)
    laptop = Laptop(tmp_path, copy_project(tmp_path))
    laptop.knows("site", site, cluster="slurm", python=python)
    yield laptop, site
    laptop.close()
    site.stop()


def test_a_job_is_submitted_once_watched_and_pulled(reached: tuple[Laptop, Site], testbed: Testbed) -> None:
    laptop, site = reached
    process = laptop.start("train", "on=site", "trainer.nodes=2", *SMALL)
    wait_until(lambda: [*site.folder.glob(".remote/requests/*/process")], process)
    site.cut()
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0 and "Trying again" in err, err
    found = re.search(r"Submitted job (\d+)", out)
    assert found, out + err
    [script] = (site.folder / "results").glob("*/*/job.sbatch")
    assert testbed.wait_job(found[1], 240) == "COMPLETED"
    assert [*(site.folder / "results").glob("*/*/job.sbatch")] == [script]
    status = laptop.command("jobs", "--on", "site", "status")
    assert status.returncode == 0 and "completed" in status.stdout, status.stderr
    logs = laptop.command("jobs", "--on", "site", "logs", "-f")
    assert logs.returncode == 0 and "rank 1 of 2" in logs.stdout, logs.stderr
    pulled = laptop.command("jobs", "pull", "--on", "site")
    assert pulled.returncode == 0 and not [*(laptop.project / "results").glob("*/*/jobs.txt")], pulled.stderr
    evaluated = laptop.command("evaluate", pulled.stdout.splitlines()[0])
    assert evaluated.returncode == 0 and "test/acc" in evaluated.stdout, evaluated.stderr


def test_a_new_cluster_is_described_from_the_laptop(reached: tuple[Laptop, Site]) -> None:
    laptop = reached[0]
    file = laptop.project / "configs" / "hosts" / "fresh.yaml"
    file.write_text((file.parent / "site.yaml").read_text().replace("cluster: 'slurm'", "cluster: fresh"))
    command = [
        sys.executable, str(laptop.project / "slurm" / "new_cluster.py"), "fresh", "--on", "site-login",
    ]  # fmt: skip
    done = subprocess.run(command, env=laptop.environ, cwd=laptop.project, capture_output=True, text=True)
    assert done.returncode == 0 and "making" in done.stderr, done.stdout + done.stderr
    assert "partition: main" in (laptop.project / "configs" / "cluster" / "fresh.yaml").read_text()
    shown = laptop.command("train", "on=fresh", "dry_run=test")
    assert shown.returncode == 0 and "#SBATCH --partition=main" in shown.stdout, shown.stderr
    file.unlink()
    done = subprocess.run(command, env=laptop.environ, cwd=laptop.project, capture_output=True, text=True)
    assert done.returncode == 0
    assert file.read_text() == 'ssh: site-login\nfolder: "~/project"\ncluster: fresh\n'
