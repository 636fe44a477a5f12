"""The code that runs is the code at submission: a copy of the project's files in the run folder."""

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BIG = 20 * 2**20
"""Bytes from which an untracked file is taken for data and left out."""


@dataclass(frozen=True)
class Snapshot:
    """What was copied.

    Attributes:
        commit: the commit checked out; None without git.
        dirty: whether files differed from it.
        notes: sentences for the user: what was left out, and why.
    """

    commit: str | None
    dirty: bool
    notes: tuple[str, ...]


def take(root: Path, code: Path, results: Path) -> Snapshot:
    """Copy the project into `code`: files that git tracks, and new ones that it does not ignore.

    Args:
        root: the project's folder.
        code: folder to be made.
        results: folder of the runs, never copied.
    """
    listed = _listed_by_git(root)
    if listed is None:
        names, commit, dirty = list(_walk(root)), None, False
        notes = [f"{root} is not under git: all files but hidden folders, data and results were copied."]
    else:
        names, untracked, commit, dirty = listed
        big = [n for n in untracked if (root / n).is_file() and (root / n).stat().st_size >= BIG]
        names = [n for n in [*names, *untracked] if n not in big]
        notes = [
            f"{n} was left out of the snapshot: not tracked by git, and larger than {BIG >> 20} MiB."
            for n in big
        ]
    _copy(root, code, (n for n in names if not (root / n).is_relative_to(results)))
    return Snapshot(commit, dirty, tuple(notes))


def _listed_by_git(root: Path) -> tuple[list[str], list[str], str, bool] | None:
    """Tracked files, untracked ones that are not ignored, the commit, whether anything differs from it; None without git."""
    tracked = _git(root, "ls-files", "-z", "--cached")
    status = _git(root, "status", "--porcelain=v2", "--branch", "--untracked-files=all", "-z", "--", ".")
    if tracked is None or status is None:
        return None
    lines = [line for line in status.split("\0") if line]
    commit = next((line.split()[-1] for line in lines if line.startswith("# branch.oid")), "")
    untracked = (
        _git(root, "ls-files", "-z", "--others", "--exclude-standard")
        if any(s[0] == "?" for s in lines)
        else ""
    )
    names = dict.fromkeys(n for n in tracked.split("\0") if n)
    return (
        list(names),
        [n for n in (untracked or "").split("\0") if n],
        commit,
        any(s[0] != "#" for s in lines),
    )


def _git(root: Path, *words: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", str(root), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="surrogateescape")
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None


def _walk(root: Path) -> Iterator[str]:
    """Files of a project without git: no hidden folders, caches, environments, data or results."""
    for folder, folders, files in os.walk(root):
        here = Path(folder)
        top = {"data", "results"} if here == root else set()
        folders[:] = [
            f
            for f in folders
            if f[0] != "." and f != "__pycache__" and f not in top and not (here / f / "pyvenv.cfg").exists()
        ]
        yield from (str((here / f).relative_to(root)) for f in files)


def _copy(root: Path, code: Path, names: Iterator[str]) -> None:
    made: set[str] = set()
    for name in names:
        folder = os.path.dirname(name)
        if folder not in made:
            os.makedirs(code / folder, exist_ok=True)
            made.add(folder)
        source, target = os.path.join(root, name), os.path.join(code, name)
        try:
            _copy_file(source, target)
        except FileNotFoundError:
            continue  # deleted, but still in git's index
        except IsADirectoryError:
            shutil.copytree(source, target, symlinks=True)  # a submodule


def _copy_file(source: str, target: str) -> None:
    """Copy bytes and permissions with as few calls as possible: shared disks are slow to answer each."""
    read = os.open(source, os.O_RDONLY)
    try:
        status = os.fstat(read)
        if not stat.S_ISREG(status.st_mode):
            raise IsADirectoryError(source)
        write = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, status.st_mode & 0o777)
        try:
            while os.sendfile(write, read, None, status.st_size or 1):
                pass
        finally:
            os.close(write)
    finally:
        os.close(read)
