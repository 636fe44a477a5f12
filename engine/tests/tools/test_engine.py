"""`make update` in a copy of the project."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tools import engine
from tools import engine_sources as sources
from tools.testing.processes import run_python
from tools.testing.projects import copy_project, git
from train_anywhere.files import ROOT

pytestmark = pytest.mark.git

NEXT = "0.1.1.dev7"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy whose environment sees the packages of this one, and installs into its own folder."""
    made = copy_project(tmp_path)
    sums = [sys.executable, "tools/engine.py", "checksums"]  # those of a tree that is being edited may be old
    subprocess.run(sums, cwd=made, check=True)
    git(made, "commit", "-q", "--allow-empty", "-am", "sums")
    (made / ".venv").unlink()
    venv.create(made / ".venv", symlinks=True)
    folder = next((made / ".venv").glob("lib/python*/site-packages"))
    (folder / "all.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return made


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """The folder of a newer engine."""
    made = tmp_path / "newer" / "engine"
    shutil.copytree(ROOT / "engine", made, ignore=shutil.ignore_patterns("__pycache__"))
    text = (made / "pyproject.toml").read_text()
    (made / "pyproject.toml").write_text(text.replace(sources.version_of(ROOT / "engine"), NEXT))
    log = (made / "CHANGELOG.md").read_text()
    (made / "CHANGELOG.md").write_text(log.replace("\n## ", f"\n## {NEXT}\n\n- Steps are faster.\n\n## ", 1))
    return made.parent


def call(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [project / ".venv/bin/python", *words]
    return subprocess.run(command, cwd=project, env=environ, capture_output=True, text=True, timeout=300)


def test_checksums_are_those_of_the_files() -> None:
    assert sources.edited_files(ROOT / "engine") == [], "after a change of the engine: make checksums"


OLD_LOG = "# Changelog\n\n## Unreleased\n\n### Added\n\n- One.\n\n## 0.1.0\n\n- First.\n"
NEW_LOG = (
    "# Changelog\n\n## Unreleased\n\n### Added\n\n- One.\n- Two\n  lines.\n\n### Fixed\n\n- A fault.\n\n"
    "### Removed\n\n## 0.1.0\n\n- First.\n"
)


@pytest.mark.parametrize(
    "old, entries",
    [
        (OLD_LOG, "## Unreleased\n### Added\n- Two\n  lines.\n### Fixed\n- A fault."),
        ("", "## Unreleased\n### Added\n- One.\n- Two\n  lines.\n### Fixed\n- A fault."),
        (NEW_LOG, "The changelog has nothing newer."),
    ],
)
def test_only_new_entries_of_a_changelog_are_printed(capsys, old, entries):
    engine.print_changes("0.1.0", "0.2.0", NEW_LOG, old)
    assert capsys.readouterr().out == f"train-anywhere 0.1.0 -> 0.2.0\n\n{entries}\n"


def test_an_edited_engine_is_not_replaced(project: Path, newer: Path) -> None:
    (project / "engine/train_anywhere/tasks.py").write_text("mine = 1\n")
    (project / "engine/train_anywhere/mine.py").touch()
    (project / "engine/README.md").unlink()
    before = git(project, "status", "--short")
    done = call(project, "tools/engine.py", "update", str(newer))
    assert (done.returncode, done.stdout) == (2, "")
    assert "README.md, train_anywhere/mine.py, train_anywhere/tasks.py" in done.stderr
    assert git(project, "status", "--short") == before


def test_edits_that_are_not_committed_are_not_replaced(project: Path, newer: Path) -> None:
    """Even with new checksums, after which they do not count as edits."""
    (project / "engine/train_anywhere/tasks.py").write_text("mine = 1\n")
    assert call(project, "tools/engine.py", "checksums").returncode == 0
    done = call(project, "tools/engine.py", "update", str(newer))
    assert (done.returncode, done.stdout) == (2, "")
    assert "would replace them: engine/CHECKSUMS, engine/train_anywhere/tasks.py. Commit them" in done.stderr
    assert (project / "engine/train_anywhere/tasks.py").read_text() == "mine = 1\n"


def test_formatting_does_not_renew_checksums() -> None:
    """Then edited files of a project would count as unedited."""
    command = ["make", "-n", "format", f"PYTHON={sys.executable}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "ruff format" in done.stdout and "checksums" not in done.stdout, done.stderr


def test_an_engine_in_the_project_is_replaced(project: Path, newer: Path) -> None:
    done = call(project, "tools/engine.py", "update", str(newer))
    assert done.returncode == 0, done.stderr
    assert f"-> {NEXT}" in done.stdout and "- Steps are faster." in done.stdout
    assert "The first release of the engine" not in done.stdout  # this version's own section
    assert sources.file_digests(project / "engine") == sources.file_digests(newer / "engine")
    assert not [*project.glob(".engine-*")]
    again = call(project, "tools/engine.py", "update", "engine")
    assert (again.returncode, again.stdout) == (0, f"train-anywhere {NEXT}: nothing new.\n")
    assert sources.edited_files(project / "engine") == []  # whatever CHECKSUMS came with it


REFUSED = {
    "update": "name the new engine",
    "update nowhere": "FROM=nowhere is not an engine",
    "update 0.1.0": "has no release yet",
    "update train-anywhere==9": "has no release yet",
    "update a.whl": "is a wheel, but engine/ needs the sources",
}


def test_what_is_refused_is_one_message_and_changes_nothing(project: Path) -> None:
    for words, says in REFUSED.items():
        done = call(project, "tools/engine.py", *words.split())
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert says in done.stderr
        assert git(project, "status", "--short") == ""


def test_this_python_is_one_of_the_project() -> None:
    """The tool needs only the standard library until it builds. Other tests use another Python."""
    done = run_python("-E", "-S", ROOT / "tools/engine.py", "update")
    assert done.returncode == 2 and done.stderr.startswith("error: name the new engine"), done.stderr
