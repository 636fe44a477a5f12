"""`hydra.launcher.on=NAME` sends a Hydra program to a host and starts the same command there."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.tests.hydra_app import write_app
from engine.tests.remote.conftest import Laptop, Site
from tools.testing.processes import run_python
from train_anywhere.files import with_engine


@pytest.fixture
def program(tmp_path: Path, site: Site) -> Iterator[Laptop]:
    """A laptop with a program in place of a project, whose host is in the home folder."""
    folder = write_app(tmp_path / "program")
    laptop = Laptop(tmp_path, folder)
    laptop.knows("site", site, setup=None, cluster="slurm")
    (tmp_path / "home" / ".config" / "train-anywhere").mkdir(parents=True)
    (folder / "configs" / "hosts").rename(tmp_path / "home" / ".config" / "train-anywhere" / "hosts")
    yield laptop
    laptop.close()


def test_the_command_runs_there_and_verbs_look_there(program: Laptop, site: Site) -> None:
    environ = with_engine({**program.environ, "HOME": str(program.folder / "home")})
    environ.pop("TRAIN_ROOT", None)

    def start(*words: str) -> "subprocess.CompletedProcess[str]":
        return run_python(*words, cwd=program.project, env=environ)

    words = ("hydra.launcher.on=site", "hydra.launcher.dry_run=true", "hydra.launcher.local_disk=/scratch")
    done = start("src/app.py", "-m", "hydra/launcher=anywhere", *words, "lr=1,2", "text='a b, $X'")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{site.folder}/results/app" in done.stdout and "#SBATCH --array=0-1" in done.stdout
    assert "-m train_anywhere status --on site" in done.stderr and (site.folder / "src/app.py").is_file()
    done = start("-m", "train_anywhere", "list", "--on", "site")
    assert (done.returncode, "there is no run in" in done.stderr) == (2, True), done.stdout + done.stderr
    done = start("src/app.py", "-m", "hydra/launcher=anywhere", *words[:2], "hydra.launcher.timeout_min=3")
    assert (done.returncode, "use hydra.launcher.time." in done.stderr) == (2, True), done.stderr
