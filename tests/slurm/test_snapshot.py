import os
import subprocess
from pathlib import Path

import pytest

from slurm import snapshot


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "src" / "a.py").write_text("a = 1\n")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / ".gitignore").write_text("/ignored/\n")
    (root / "ignored").mkdir()
    (root / "ignored" / "big.bin").write_text("x")
    return root


def git(root: Path, *words: str) -> str:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    return subprocess.run(
        ["git", "-C", root, *who, *words], check=True, capture_output=True, text=True
    ).stdout.strip()


def commit(root: Path) -> str:
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "first")
    return git(root, "rev-parse", "HEAD")


def take(root: Path) -> tuple[snapshot.Snapshot, Path]:
    code = root.parent / "code"
    return snapshot.take(root, code, root / "results"), code


def files(code: Path) -> set[str]:
    return {str(p.relative_to(code)) for p in code.rglob("*") if p.is_file()}


def test_tracked_and_new_files_but_not_ignored_ones(project: Path) -> None:
    head = commit(project)
    (project / "src" / "new.py").write_text("new = 1\n")
    (project / "src" / "a.py").write_text("a = 2\n")
    taken, code = take(project)
    assert files(code) == {".gitignore", "run.sh", "src/a.py", "src/new.py"}
    assert (code / "src" / "a.py").read_text() == "a = 2\n"
    assert os.access(code / "run.sh", os.X_OK)
    assert (taken.commit, taken.dirty, taken.notes) == (head, True, ())


def test_a_clean_tree_is_not_dirty(project: Path) -> None:
    commit(project)
    assert not take(project)[0].dirty


def test_names_that_git_would_quote(project: Path) -> None:
    commit(project)
    (project / "é \n'q'.py").write_text("")
    _, code = take(project)
    assert "é \n'q'.py" in files(code)


def test_a_deleted_file_that_git_still_lists(project: Path) -> None:
    commit(project)
    (project / "src" / "a.py").unlink()
    taken, code = take(project)
    assert "src/a.py" not in files(code)
    assert taken.dirty


def test_untracked_data_is_left_out_and_named(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(project)
    monkeypatch.setattr(snapshot, "BIG", 10)
    (project / "weights.bin").write_text("x" * 11)
    taken, code = take(project)
    assert "weights.bin" not in files(code)
    assert "weights.bin was left out" in taken.notes[0]


def test_run_folders_are_never_copied(project: Path) -> None:
    commit(project)
    (project / "results" / "run").mkdir(parents=True)
    (project / "results" / "run" / "config.yaml").write_text("")
    assert not any(f.startswith("results") for f in files(take(project)[1]))


def test_without_git_all_but_data_and_hidden_folders(project: Path) -> None:
    (project / ".venv" / "bin").mkdir(parents=True)
    (project / ".venv" / "bin" / "python").touch()
    (project / "env").mkdir()
    (project / "env" / "pyvenv.cfg").touch()
    (project / "data").mkdir()
    (project / "data" / "images").touch()
    taken, code = take(project)
    assert files(code) == {".gitignore", "run.sh", "src/a.py", "ignored/big.bin"}
    assert taken.commit is None
    assert "not under git" in taken.notes[0]


def test_a_project_in_a_folder_of_a_larger_repository(project: Path) -> None:
    (project.parent / "other.txt").touch()
    commit(project.parent)
    _, code = take(project)
    assert "src/a.py" in files(code)
    assert "other.txt" not in files(code)
