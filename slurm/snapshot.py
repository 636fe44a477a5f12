"""The code that runs is the code at submission: a copy of the project's files in the run folder."""

import errno
import itertools
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slurm import git
from slurm.left_out import data, special, unfit
from src.errors import SubmitError

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


def take(root: Path, code: Path, results: Path, asked: git.GitQuery | None = None) -> Snapshot:
    """Copy the project but its tests into `code`: files that git tracks, and new ones that it does not ignore.

    Args:
        root: the project's folder.
        code: folder to be made.
        results: folder of the runs, never copied.
        asked: what git was asked before, if it was.

    Raises:
        SubmitError: a file of the project can't be read, or the disk does not take the copy; a part of it may be there.
    """
    try:
        return _take(root, code, results, (asked or git.GitQuery(root)).answer())
    except PermissionError as error:
        raise SubmitError(
            f"{error.filename} can't be read or written ({error.strerror}), and a job runs a copy of the project's files: "
            "change its permissions (chmod u+rw), or remove it."
        ) from error
    except OSError as error:
        raise SubmitError(f"the project's files can't be copied to {code}: {error}.") from error


def _take(root: Path, code: Path, results: Path, known: git.GitState | None) -> Snapshot:
    left: dict[str, str] = {}
    if known is None:
        names = _code(results, root, _walk(root, left))
        _copy(root, code, _judged(root, names, left), left)
        note = f"{root} is not under git: all files but hidden ones, data, results and tests were copied."
        return Snapshot(None, False, (note, *_told(left)))
    untracked = _judged(root, _code(results, root, known.untracked), left)
    tracked = _code(results, root, known.tracked)
    copied = _copy(root, code, itertools.chain(tracked, untracked), left, known.algorithm)
    unlike = [n for n, what in copied.items() if n in known.tracked and known.tracked[n] != what]
    return Snapshot(known.commit, known.differs or git.changed(root, unlike), tuple(_told(left)))


def _told(left: dict[str, str]) -> Iterator[str]:
    return (f"{name} was left out of the snapshot: {why}." for name, why in left.items())


def _judged(root: Path, names: Iterable[str], left: dict[str, str]) -> Iterator[str]:
    """The names of code, of files that git does not track; those of all else get into `left` with a reason."""
    for name in names:
        if why := unfit(root, name):
            left[name] = why
        elif why := data(root, name):
            left[name] = f"not tracked by git, and {why}"
        else:
            yield name


def _code(results: Path, root: Path, names: Iterable[str]) -> Iterator[str]:
    others = (os.path.relpath(results, root) + "/", TESTS)
    return (n for n in names if not n.startswith(others))


def _walk(root: Path, left: dict[str, str]) -> Iterator[str]:
    """Files of a project without git: nothing hidden, no caches, environments, data or results."""

    def unreadable(error: OSError) -> None:
        left[os.path.relpath(error.filename, root)] = f"it can't be read ({error.strerror})"

    for folder, folders, files in os.walk(root, onerror=unreadable):
        here = Path(folder)
        top = {"data", "results"} if here == root else set()
        folders[:] = [
            f
            for f in folders
            if f[0] != "."
            and f != "__pycache__"
            and f not in top
            and not os.path.exists(here / f / "pyvenv.cfg")
        ]
        yield from (str((here / f).relative_to(root)) for f in files if f[0] != ".")


def _copy(
    root: Path, code: Path, names: Iterable[str], left: dict[str, str], algorithm: str = "sha1"
) -> dict[str, tuple[str, str] | None]:
    """Copy files; what git would call each: mode and object name. What is no file gets into `left` with a reason."""
    os.makedirs(code, exist_ok=True)
    made = {""}
    copied = {}
    for name in names:
        _make_folder(code, os.path.dirname(name.rstrip("/")), made)
        try:
            copied[name] = _copy_path(os.path.join(root, name), os.path.join(code, name), algorithm)
        except _Special as kind:
            left[name] = str(kind)
        except IsADirectoryError:  # a submodule, or another repository
            shutil.copytree(
                os.path.join(root, name),
                os.path.join(code, name),
                symlinks=True,
                ignore=_ignoring(root, left),
            )
            copied[name] = None
    return copied


def _ignoring(root: Path, left: dict[str, str]) -> Callable[[str, list[str]], set[str]]:
    """For copytree: leaves out the history, and what is no code."""

    def ignore(folder: str, entries: list[str]) -> set[str]:
        found = {e: os.path.relpath(os.path.join(folder, e), root) for e in entries if e != ".git"}
        unfits = {e: why for e, name in found.items() if (why := unfit(root, name))}
        left.update({found[e]: why for e, why in unfits.items()})
        return {".git", *unfits}

    return ignore


class _Special(Exception):
    """That a path has no content to copy."""


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
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise _Special("it is a socket") from None
        if error.errno != errno.ELOOP:
            raise
    link = os.fsencode(os.readlink(source))
    if os.path.exists(source):  # what it leads to is copied: that may be edited too
        _copy_path(os.path.realpath(source), target, algorithm)
    return "120000", git.object_name(algorithm, len(link), link).hexdigest()


def _copy_file(source: str, target: str, algorithm: str) -> tuple[str, str]:
    """Copy bytes and permissions with as few calls as possible: shared disks are slow to answer each."""
    # O_NONBLOCK: opening a FIFO would wait for a writer
    read = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(read)
        if kind := special(status.st_mode):
            raise _Special(kind)
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
