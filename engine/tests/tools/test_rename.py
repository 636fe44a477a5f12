"""`make rename NAME=...` in a copy of the project: the old name is gone, the new one works, and a second one too."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from train_anywhere.files import ROOT
from train_anywhere.testing.projects import copy_project, run_command

pytestmark = pytest.mark.git

TITLE = (ROOT / "README.md").read_text().splitlines()[0].strip("# ")
OLD = re.compile(rf"{TITLE}|my-training")


def rename(project: Path, name: str) -> subprocess.CompletedProcess[str]:
    command = ("make", "--no-print-directory", "rename", f"NAME={name}", f"PYTHON={sys.executable}")
    return run_command(project, *command)


def naming(project: Path, name: re.Pattern[str]) -> list[str]:
    """Return the fork's files that contain the name: those of the engine keep theirs."""
    files = run_command(
        project, "git", "ls-files", ":!engine", f":!{Path(__file__).relative_to(ROOT)}"
    ).stdout.split()
    return [file for file in files if name.search((project / file).read_text(errors="ignore"))]


def head(path: Path) -> str:
    return path.read_text().splitlines()[0]


def test_nothing_keeps_the_old_name_and_a_second_name_replaces_the_first(tmp_path: Path) -> None:
    project = copy_project(tmp_path)
    places = naming(project, OLD)
    first = " ".join(("Protein", "folds"))  # in two parts: this file is in the copy too
    assert rename(project, first).returncode == 0
    assert naming(project, OLD) == []
    assert head(project / "README.md") == f"# {first}"
    assert f'name = "{first.lower().replace(" ", "-")}"' in (project / "pyproject.toml").read_text()
    done = rename(project, "Grid_2")
    assert done.returncode == 0 and "called Grid_2 (grid-2)" in done.stdout
    assert naming(project, re.compile(first.replace(" ", "."), re.IGNORECASE)) == []
    assert run_command(project, "git", "status", "--short").stdout.split()[1::2] == places
    assert rename(project, "Grid_2").stdout.startswith("\nThe project is called")  # no file changed


@pytest.mark.parametrize(
    "name, says", [("", "name the project"), ("../x", "letters"), ("1", "letters"), ("é", "letters")]
)
def test_a_name_that_can_not_be_one(tmp_path: Path, name: str, says: str) -> None:
    done = subprocess.run(
        [sys.executable, "tools/rename.py", name],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and says in done.stderr and done.stderr.count("\n") == 1
