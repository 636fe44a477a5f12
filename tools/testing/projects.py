"""Small projects under git, and snapshots of their code."""

import shutil
import subprocess
import sys
from pathlib import Path

from train_anywhere.files import ROOT
from train_anywhere.slurm.submission import snapshot


def git(root: Path, *words: str) -> str:
    """Run git in a folder and return its output."""
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    return subprocess.run(
        ["git", "-C", root, *who, *words], check=True, capture_output=True, text=True
    ).stdout.strip()


def commit(root: Path) -> str:
    """Commit all files of a new repository and return the id of the commit."""
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "first")
    return git(root, "rev-parse", "HEAD")


def take_snapshot(root: Path) -> tuple[snapshot.Snapshot, Path]:
    """Take a snapshot of a project and return it with its folder."""
    code = root.parent / "code"
    return snapshot.take_snapshot(root, code, root / "results"), code


def list_files(code: Path) -> set[str]:
    """Return the files of a snapshot, without those of the engine."""
    found = {str(p.relative_to(code)) for p in code.rglob("*") if p.is_file()}
    return {name for name in found if not name.startswith("train_anywhere/")}


def modify(root: Path) -> None:
    """Change a file of the project without changing its size."""
    (root / "src" / "a.py").write_text("a = 2\n")  # the same number of bytes as before


def add_submodule(root: Path) -> None:
    """Add a git submodule to the project and commit it."""
    other = root.parent / "other"
    other.mkdir()
    (other / "x.py").touch()
    commit(other)
    git(root, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other), "sub")
    git(root, "commit", "-q", "-m", "with submodule")


def run_command(project: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a project."""
    return subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=600)


def copy_project(folder: Path) -> Path:
    """Copy this project into `folder`, with uncommitted changes, and commit it there."""
    project = folder / "project"
    for name in run_command(ROOT, "git", "ls-files", "-z", "-co", "--exclude-standard").stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, project / name, follow_symlinks=False)
    (project / ".venv").symlink_to(sys.prefix)
    commit(project)
    return project
