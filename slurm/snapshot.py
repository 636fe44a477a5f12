"""The code that runs is the code at submission: a copy of the project's files in the run folder."""

import errno
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slurm import git

BIG = 20 * 2**20
"""Bytes from which an untracked file is taken for data and left out."""

TESTS = "tests/"
"""No run reads them, and they are four files of ten: run folders count against quotas of files."""

PIECE = 2**20
"""Bytes copied at a time."""


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


def take(root: Path, code: Path, results: Path, asked: git.Question | None = None) -> Snapshot:
    """Copy the project but its tests into `code`: files that git tracks, and new ones that it does not ignore.

    Args:
        root: the project's folder.
        code: folder to be made.
        results: folder of the runs, never copied.
        asked: what git was asked before, if it was.
    """
    known = (asked or git.Question(root)).answer()
    if known is None:
        _copy(root, code, _code(results, root, _walk(root)))
        note = f"{root} is not under git: all files but hidden folders, data, results and tests were copied."
        return Snapshot(None, False, (note,))
    data = {n: reason for n in known.untracked if (reason := _data(root / n))}
    names = [*known.tracked, *(n for n in known.untracked if n not in data)]
    copied = _copy(root, code, _code(results, root, names), known.algorithm)
    unlike = [n for n, what in copied.items() if n in known.tracked and known.tracked[n] != what]
    notes = (f"{n} was left out of the snapshot: not tracked by git, and {why}." for n, why in data.items())
    return Snapshot(known.commit, known.differs or git.changed(root, unlike), tuple(notes))


def _code(results: Path, root: Path, names: Iterable[str]) -> Iterator[str]:
    others = (os.path.relpath(results, root) + "/", TESTS)
    return (n for n in names if not n.startswith(others))


def _data(path: Path) -> str:
    """Why an untracked path is taken for data; empty where it is code."""
    status = path.lstat()
    if stat.S_ISREG(status.st_mode) and status.st_size >= BIG:
        return f"larger than {BIG >> 20} MiB"
    return "a link to a folder" if stat.S_ISLNK(status.st_mode) and path.is_dir() else ""


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


def _copy(
    root: Path, code: Path, names: Iterable[str], algorithm: str = "sha1"
) -> dict[str, tuple[str, str] | None]:
    """Copy files; what git would call each: mode and object name."""
    os.makedirs(code)
    made = {""}
    copied = {}
    for name in names:
        _make_folder(code, os.path.dirname(name.rstrip("/")), made)
        copied[name] = _copy_path(os.path.join(root, name), os.path.join(code, name), algorithm)
    return copied


def _make_folder(code: Path, folder: str, made: set[str]) -> None:
    if folder not in made:
        _make_folder(code, os.path.dirname(folder), made)
        with suppress(FileExistsError):  # a folder has taken the place of a tracked file
            os.mkdir(os.path.join(code, folder))
        made.add(folder)


def _copy_path(source: str, target: str, algorithm: str) -> tuple[str, str] | None:
    try:
        return _copy_file(source, target, algorithm)
    except FileNotFoundError:  # deleted, but still in git's index
        return None
    except IsADirectoryError:  # a submodule, or another repository
        shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns(".git"))
        return None
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
    link = os.fsencode(os.readlink(source))
    if os.path.exists(source):  # what it leads to is copied: that may be edited too
        _copy_path(os.path.realpath(source), target, algorithm)
    return "120000", git.object_name(algorithm, len(link), link).hexdigest()


def _copy_file(source: str, target: str, algorithm: str) -> tuple[str, str]:
    """Copy bytes and permissions with as few calls as possible: shared disks are slow to answer each."""
    read = os.open(source, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        status = os.fstat(read)
        if not stat.S_ISREG(status.st_mode):
            raise IsADirectoryError(source)
        name = git.object_name(algorithm, status.st_size)
        write = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, status.st_mode & 0o777)
        try:
            while piece := os.read(read, PIECE):
                name.update(piece)
                while piece:
                    piece = piece[os.write(write, piece) :]
        finally:
            os.close(write)
    finally:
        os.close(read)
    return "100755" if status.st_mode & stat.S_IXUSR else "100644", name.hexdigest()
