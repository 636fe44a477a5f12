"""Small projects under git, and snapshots of them."""

import shutil
import subprocess
import sys
from pathlib import Path

from train_anywhere.files import ROOT
from train_anywhere.slurm.submission import snapshot


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
    """Return the files of a snapshot without those of the engine."""
    found = {str(p.relative_to(code)) for p in code.rglob("*") if p.is_file()}
    return {name for name in found if not name.startswith("train_anywhere/")}


def modify(root: Path) -> None:
    (root / "src" / "a.py").write_text("a = 2\n")  # as many bytes as before


def add_submodule(root: Path) -> None:
    other = root.parent / "other"
    other.mkdir()
    (other / "x.py").touch()
    commit(other)
    git(root, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other), "sub")
    git(root, "commit", "-q", "-m", "with submodule")


def run(project: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=600)


def copy(folder: Path) -> Path:
    """The project as git has it here, changes included, committed."""
    project = folder / "project"
    for name in run(ROOT, "git", "ls-files", "-z", "-co", "--exclude-standard").stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, project / name, follow_symlinks=False)
    (project / ".venv").symlink_to(sys.prefix)
    commit(project)
    return project
