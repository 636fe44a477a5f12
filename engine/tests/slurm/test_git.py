"""Facts that git reports about a project: its files, the commit, local changes."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from engine.tests.slurm.scripts import tool
from tools.testing.projects import add_submodule, commit, git, list_files, modify, take_snapshot
from train_anywhere.errors import SubmitError
from train_anywhere.runs.provenance import describe_code
from train_anywhere.slurm.submission import snapshot

pytestmark = pytest.mark.git


def conflict(root: Path) -> None:
    for branch in ("one", "two"):
        git(root, "checkout", "-q", "-b", branch, "HEAD" if branch == "one" else "HEAD~1")
        (root / "src" / "a.py").write_text(branch)
        git(root, "commit", "-q", "-a", "-m", branch)
    with pytest.raises(subprocess.CalledProcessError):
        git(root, "merge", "one")


def commit_in_submodule(root: Path) -> None:
    add_submodule(root)
    git(root / "sub", "commit", "-q", "--allow-empty", "-m", "second")


def no_modes(root: Path) -> None:
    git(root, "config", "core.fileMode", "false")
    (root / "run.sh").chmod(0o644)


CHANGES: list[tuple[Callable[[Path], object], bool]] = [
    (modify, True),
    (conflict, True),
    (commit_in_submodule, True),
    (lambda root: (root / "src" / "a.py").unlink(), True),
    (lambda root: (root / "run.sh").chmod(0o644), True),
    (lambda root: (root / "new").touch(), True),
    (lambda root: git(root, "mv", "src/a.py", "src/b.py"), True),
    (lambda root: None, False),
    (add_submodule, False),
    (no_modes, False),
    (lambda root: (root / "ignored" / "more").touch(), False),
    (lambda root: os.utime(root / "src" / "a.py", (0, 0)), False),
]


@pytest.mark.parametrize(("change", "dirty"), CHANGES)
def test_dirty_is_what_git_status_says(project: Path, change: Callable[[Path], object], dirty: bool) -> None:
    commit(project)
    change(project)
    said = git(project, "status", "--porcelain", "--untracked-files=all", "--", ".")
    assert take_snapshot(project)[0].dirty == bool(said) == dirty


def test_a_repository_with_sha256_names(project: Path) -> None:
    git(project, "init", "-q", "--object-format=sha256")
    head = commit(project)
    assert take_snapshot(project)[0] == snapshot.Snapshot(head, False, ())


def test_git_changes_nothing_in_the_repository_and_runs_no_program_that_its_configuration_names(
    project: Path,
) -> None:
    commit(project)
    program = project.parent / "program"
    tool(program, f"touch {project.parent}/ran")
    (project / ".git" / "hooks").mkdir(exist_ok=True)
    for hook in ("post-index-change", "post-checkout", "pre-commit"):
        (project / ".git" / "hooks" / hook).symlink_to(program)
    git(project, "config", "core.fsmonitor", str(program))
    os.utime(project / "src" / "a.py", (0, 0))  # git would note in its index that the file is the same
    index = (project / ".git" / "index").read_bytes()
    taken, code = take_snapshot(project)
    assert not taken.dirty and list_files(code) == {".gitignore", "run.sh", "src/a.py"}
    assert (project / ".git" / "index").read_bytes() == index
    assert not (project.parent / "ran").exists()


@pytest.mark.parametrize(
    ("key", "value"),
    [("status.showUntrackedFiles", "no"), ("status.branch", "false"), ("status.short", "true"), ("color.ui", "always"),
     ("core.quotePath", "true"), ("status.relativePaths", "false"), ("status.renames", "copies")],
)  # fmt: skip
def test_how_git_is_configured_to_print_changes_nothing(project: Path, key: str, value: str) -> None:
    head = commit(project)
    git(project, "config", key, value)
    (project / "é.py").touch()
    git(project, "mv", "src/a.py", "src/ü b.py")
    taken, code = take_snapshot(project)
    assert (taken.commit, taken.dirty) == (head, True)
    assert list_files(code) == {".gitignore", "run.sh", "src/ü b.py", "é.py"}


def test_a_change_elsewhere_in_a_larger_repository_is_none_of_the_project(project: Path) -> None:
    (project.parent / "other.txt").write_text("1")
    head = commit(project.parent)
    (project.parent / "other.txt").write_text("2")
    taken, code = take_snapshot(project)
    assert taken == snapshot.Snapshot(head, False, ()) and "other.txt" not in list_files(code)
    modify(project)
    shutil.rmtree(project.parent / "code")
    assert take_snapshot(project)[0].dirty


def put_first_on_path(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    (folder / "bin").mkdir()
    tool(folder / "bin" / "git", script)
    monkeypatch.setenv("PATH", f"{folder}/bin:{os.environ['PATH']}")


@pytest.mark.timeout(20)
def test_a_git_that_hangs_is_ended(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(project)
    put_first_on_path(monkeypatch, project.parent, f"echo $$ > {project.parent}/pid; sleep 60 & sleep 60")
    monkeypatch.setattr(snapshot.provenance, "TIMEOUT_S", 0.5)
    with pytest.raises(SubmitError, match=r"^git did not answer within 0.5 s, .* `git -C .*project status`"):
        take_snapshot(project)
    assert not psutil.pid_exists(int((project.parent / "pid").read_text()))


def test_without_a_git_that_can_be_started_the_project_is_not_under_git(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(project)
    monkeypatch.setenv("PATH", str(project))
    taken, code = take_snapshot(project)
    assert (taken.commit, taken.dirty) == (None, False)
    assert "not under git" in taken.notes[0] and "src/a.py" in list_files(code)


def test_before_the_first_commit(project: Path) -> None:
    git(project, "init", "-q")
    taken, code = take_snapshot(project)
    assert (taken.commit, taken.dirty) == (None, True)
    assert "src/a.py" in list_files(code)


def test_the_start_of_a_run_asks_for_the_commit_only(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(project)
    assert describe_code(project) == {"commit": git(project, "rev-parse", "HEAD").strip(), "dirty": False}
    monkeypatch.setattr(snapshot.provenance, "START_TIMEOUT_S", 0.5)
    put_first_on_path(monkeypatch, project.parent, f'echo "$@" >> {project.parent}/asked; sleep 300')
    (project.parent / "asked").touch()  # git may be ended before its first line
    before = time.monotonic()
    assert describe_code(project) == {"commit": None, "dirty": None}
    assert time.monotonic() - before < 60
    assert "ls-files" not in (project.parent / "asked").read_text()
