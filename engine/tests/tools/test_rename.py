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


def rename(project: Path, name: str, repo: str = "") -> subprocess.CompletedProcess[str]:
    words = (f"NAME={name}", f"REPO={repo}", f"PYTHON={sys.executable}")
    return run_command(project, "make", "--no-print-directory", "rename", *words)


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


KILLED = """
import os, signal, sys
sys.path.insert(0, "tools")
import rename
replace, calls = os.replace, []
def replace_or_die(source, target):
    calls.append(target)
    if len(calls) == {step}:
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)
os.replace = replace_or_die
rename.main(["First Name", "lab/first"])
"""


@pytest.mark.parametrize("step", [1, 2, 3, 5, 8])
def test_the_next_call_finishes_a_killed_rename(tmp_path: Path, step: int) -> None:
    """Whatever it is called now, no file keeps an earlier name, nor is a file left that git shows."""
    (tmp_path / "whole").mkdir()
    (tmp_path / "killed").mkdir()
    whole, project = copy_project(tmp_path / "whole"), copy_project(tmp_path / "killed")
    killed = run_command(project, sys.executable, "-c", KILLED.format(step=step))
    assert killed.returncode == -9, killed.stderr
    for name in ("First Name", "Grid_2")[step % 2 :]:  # the same name again, or another one at once
        assert [rename(folder, name, "lab/last").returncode for folder in (project, whole)] == [0, 0]
        assert run_command(project, "git", "diff").stdout == run_command(whole, "git", "diff").stdout
    assert run_command(project, "git", "status", "--short", "--ignored").stdout.count("rename") == 0
    assert not [*project.rglob(".*.new")] and naming(project, re.compile("first.name", re.IGNORECASE)) == []


def test_badges_and_addresses_are_those_of_the_repository(tmp_path: Path) -> None:
    project = copy_project(tmp_path)
    assert "github.com/" not in re.sub(r"- .*", "", (project / "README.md").read_text())
    done = rename(project, "", "lab/star-net")
    assert done.returncode == 0 and head(project / "README.md") == f"# {TITLE}", done.stderr
    first = {place: (project / place).read_text() for place in done.stdout.split("\n\n")[0].splitlines()}
    assert set(first) == {"README.md", "CITATION.cff", "mkdocs.yml", "docs/tutorials/first-model.md"}
    assert all("https://github.com/lab/star-net" in text for text in first.values())
    assert "[Use this template](https://github.com/lab/star-net/generate)" in first["README.md"]
    for package in ("Lightning", "Keras"):
        pin = re.search(
            rf"^{package.lower()}==(\d+\.\d+)",
            (ROOT / f"requirements/{package.lower()}.txt").read_text(),
            re.M,
        )
        assert pin and f"badge/{package}-{pin[1]}-" in first["README.md"]
    rename(project, "", "lab/moon-net")
    for place, text in first.items():
        assert (project / place).read_text() == text.replace("star-net", "moon-net")


def test_an_address_that_can_not_be_one() -> None:
    for repo in ("star-net", "https://github.com/lab/star-net", "lab/../x", "lab/a b"):
        done = run_command(ROOT, sys.executable, "tools/rename.py", "", repo)
        assert done.returncode == 2 and done.stderr.startswith(f"error: REPO={repo} is not a repository")


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
