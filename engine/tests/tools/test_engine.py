"""`make detach`, `make attach` and `make update` in a copy of the project."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tools import engine
from tools.testing.projects import copy_project, git, run_command
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
    (made / "pyproject.toml").write_text(text.replace(engine.version_of(ROOT / "engine"), NEXT))
    log = (made / "CHANGELOG.md").read_text()
    (made / "CHANGELOG.md").write_text(log.replace("\n## ", f"\n## {NEXT}\n\n- Steps are faster.\n\n## ", 1))
    return made.parent


def call(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [project / ".venv/bin/python", *words]
    return subprocess.run(command, cwd=project, env=environ, capture_output=True, text=True, timeout=300)


def test_checksums_are_those_of_the_files() -> None:
    assert engine.edited_files(ROOT / "engine") == [], "after a change of the engine: make checksums"


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
def test_only_new_entries_of_a_changelog_are_printed(
    capsys: pytest.CaptureFixture[str], old: str, entries: str
) -> None:
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
    assert engine.file_digests(project / "engine") == engine.file_digests(newer / "engine")
    assert not [*project.glob(".engine-*")]
    again = call(project, "tools/engine.py", "update", "engine")
    assert (again.returncode, again.stdout) == (0, f"train-anywhere {NEXT}: nothing new.\n")
    assert engine.edited_files(project / "engine") == []  # whatever CHECKSUMS came with it


REFUSED = {
    "update": "name the new engine",
    "update nowhere": "FROM=nowhere is not an engine",
    "update 0.1.0": "has no release yet",
    "update train-anywhere==9": "has no release yet",
    "update a.whl": "is a wheel, but engine/ needs the sources",
    "attach": "engine/ is already here",
    "detach nowhere.whl": "FROM=nowhere.whl is not a wheel",
}


def test_what_is_refused_is_one_message_and_changes_nothing(project: Path) -> None:
    for words, says in REFUSED.items():
        done = call(project, "tools/engine.py", *words.split())
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert says in done.stderr
        assert git(project, "status", "--short") == ""


@pytest.mark.slow
@pytest.mark.new_process
def test_detached_updated_attached(project: Path, newer: Path, tmp_path: Path) -> None:
    """The wheel has every file of the package, and the project trains and tests with it."""
    done = call(project, "tools/engine.py", "detach")
    assert done.returncode == 0, done.stderr
    (wheel,) = (project / "wheels").glob("*.whl")
    package = ROOT / "engine" / engine.PACKAGE
    names = {n for n in zipfile.ZipFile(wheel).namelist() if n.startswith(f"{engine.PACKAGE}/")}
    assert names == {f"{engine.PACKAGE}/{p.relative_to(package)}" for p in engine.files(package)}
    assert not (project / "engine").exists()
    assert "sha256:" in (project / "requirements/engine.txt").read_text()

    words = ("trainer.fast_dev_run=true", f"paths.results={tmp_path / 'results'}")
    for framework in ("lightning", "keras"):
        done = call(project, "src/train.py", f"framework={framework}", *words, "trainer.devices=2")
        assert done.returncode == 0, done.stderr
    done = call(project, "-m", "pytest", "-q", "-m", "not slow", "-n", "2", "tests")
    assert done.returncode == 0, done.stdout
    done = run_command(project, sys.executable, "-m", "ruff", "check", "--no-cache", ".")
    assert done.returncode == 0, done.stdout
    done = run_command(project, "make", "test-engine")
    assert done.returncode and "to bring engine/ back: make attach" in done.stderr
    git(project, "add", "-A")
    said = re.search(r"about ([\d,]+) lines of Python", (project / "docs/how-to/get-updates.md").read_text())
    assert said
    lines = sum(
        (project / name).read_text().count("\n") for name in git(project, "ls-files", "*.py").splitlines()
    )
    assert 0.8 < lines / int(said[1].replace(",", "")) < 1.2, lines

    done = call(project, "tools/engine.py", "update", str(newer))
    assert done.returncode == 0, done.stderr
    assert f"-> {NEXT}" in done.stdout and "- Steps are faster." in done.stdout
    assert [p.name for p in (project / "wheels").glob("*.whl")] == [f"train_anywhere-{NEXT}-py3-none-any.whl"]
    found = call(project, "-c", "from importlib.metadata import version; print(version('train-anywhere'))")
    assert found.stdout == f"{NEXT}\n"

    done = call(project, "tools/engine.py", "attach")
    assert done.returncode == 0, done.stderr
    assert engine.file_digests(project / "engine") == engine.file_digests(newer / "engine")
    assert not (project / "requirements/engine.txt").exists() and not (project / "wheels").exists()
    done = call(
        project,
        "-c",
        "import sys; sys.path[:1] = ['', 'engine']; import train_anywhere as t; print(t.__file__)",
    )
    assert done.stdout == f"{project}/engine/train_anywhere/__init__.py\n"


@pytest.mark.new_process
def test_upstream_is_merged_after_a_detach(project: Path) -> None:
    """The page's two commands, where plain git has a conflict in each changed file of engine/."""
    page = (ROOT / "docs/how-to/get-updates.md").read_text().partition("## Without engine/")[2]
    (merge, install) = [line for line in page.splitlines() if "upstream/main" in line]
    git(project, "branch", "-M", "main")
    git(project, "checkout", "-qb", "theirs")
    for name in ("tasks.py", "errors.py", "__init__.py"):
        with (project / "engine/train_anywhere" / name).open("a") as file:
            file.write("\n# newer\n")
    (project / "engine/train_anywhere/added.py").write_text('"""New."""\n')
    (project / "configs/model/added.yaml").write_text("name: added\n")
    assert call(project, "tools/engine.py", "checksums").returncode == 0
    git(project, "add", "-A")
    git(project, "commit", "-qm", "newer")
    git(project, "update-ref", "refs/remotes/upstream/main", "HEAD")
    git(project, "checkout", "-q", "main")
    assert call(project, "tools/engine.py", "detach").returncode == 0
    git(project, "add", "-A", "wheels", "requirements", "engine")
    git(project, "commit", "-qm", "detached")

    done = run_command(project, *merge.split("#")[0].split())
    assert done.returncode == 1 and "CONFLICT" in done.stdout, done.stdout + done.stderr
    for name in ("user.name", "user.email"):
        git(project, "config", name, "t@example.org")
    assert install.split("#")[0].split() == ["make", "update", "FROM=upstream/main"]
    done = call(project, "tools/engine.py", "update", "upstream/main")
    assert done.returncode == 0 and "The merge is committed." in done.stdout, done.stdout + done.stderr
    assert git(project, "status", "--short") == "" and not (project / "engine").exists()
    assert (project / "configs/model/added.yaml").exists()
    assert git(project, "merge-base", "HEAD", "theirs") == git(project, "rev-parse", "theirs")
    found = call(project, "-c", "import train_anywhere.added, train_anywhere.tasks as t; print(t.__file__)")
    assert "site-packages" in found.stdout, found.stderr
    assert "# newer" in Path(found.stdout.strip()).read_text()


def test_this_python_is_one_of_the_project() -> None:
    """The tool needs only the standard library until it builds. Other tests use another Python."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", ROOT / "tools/engine.py", "attach"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (2, "error: engine/ is already here.\n")
