"""A job runs the code as it was at submission: a copy of the project's files in the run folder."""

import errno
import itertools
import os
import shutil
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from train_anywhere.errors import SubmitError
from train_anywhere.files import ENGINE
from train_anywhere.slurm.submission import git
from train_anywhere.slurm.submission.left_out import (
    UNREAD,
    group_reads,
    special,
    why_data,
    why_not_copied,
    why_private,
)

PIECE = 2**20
"""Bytes copied at a time."""

SOME = 20
"""Paths that are named, and tracked files whose permissions are looked at."""


@dataclass(frozen=True)
class Snapshot:
    """What was copied.

    Attributes:
        commit: the commit checked out; None without git.
        dirty: whether files differed from it (tests excepted).
        notes: sentences for the user: what was left out, and why.
    """

    commit: str | None
    dirty: bool
    notes: tuple[str, ...]


def take(root: Path, code: Path, results: Path) -> Snapshot:
    """Copy the project except its tests into `code`: files that git tracks, and new ones that it does not ignore.

    Args:
        root: the project's folder.
        code: folder to be made.
        results: folder of the runs, never copied.

    Raises:
        SubmitError: a file can't be read, the disk is full, or git does not answer; a part of the copy may exist.
    """
    try:
        return _take(root, code, results, git.read_state(root))
    except PermissionError as error:
        raise SubmitError(
            f"{error.filename} can't be read or written ({error.strerror}), and a job runs a copy of the project's files: "
            "change its permissions (chmod u+rw), or remove it."
        ) from error
    except OSError as error:
        raise SubmitError(f"the project's files can't be copied to {code}: {error}.") from error


def _take(root: Path, code: Path, results: Path, known: git.GitState | None) -> Snapshot:
    left_out: dict[str, str] = {}
    tracked = [*_wanted(results, root, known.tracked)] if known else []
    new = [*_wanted(results, root, known.untracked if known else _walk(root, left_out))]
    shared = group_reads(root, tracked[:SOME] if known else new)
    names = [*tracked, *_code_only(root, new, left_out, shared)]
    _copy(root, code, (name for name in names if not name.startswith("engine/")), left_out)
    _copy(ENGINE, code, _engine(root, names, left_out), left_out)
    if known is None:
        note = f"{root} is not under git: all files but hidden ones, data, results and tests were copied."
        return Snapshot(None, False, (note, *_notes(left_out)))
    return Snapshot(known.commit, known.changed or bool(new), tuple(_notes(left_out)))


def _engine(root: Path, names: Sequence[str], left_out: dict[str, str]) -> Iterator[str]:
    """Yield the files of the engine that runs now, below `ENGINE`: those of the project's engine/, else the installed ones."""
    if ENGINE.resolve() == (root / "engine").resolve():
        yield from (n.removeprefix("engine/") for n in names if n.startswith("engine/train_anywhere/"))
    else:
        yield from (f"train_anywhere/{name}" for name in _walk(ENGINE / "train_anywhere", left_out, apart=()))


def _notes(left_out: dict[str, str]) -> Iterator[str]:
    shown = itertools.islice(left_out.items(), SOME)
    yield from (f"{name} was left out of the snapshot: {why}." for name, why in shown)
    if len(left_out) > SOME:
        yield f"{len(left_out) - SOME} more paths were left out of the snapshot, such as {[*left_out][-1]}."


def _wanted(results: Path, root: Path, names: Iterable[str]) -> Iterator[str]:
    """The names that are neither results nor tests."""
    others = (os.path.relpath(results, root) + "/", *UNREAD)
    return (n for n in names if not n.startswith(others))


def _code_only(root: Path, names: Iterable[str], left_out: dict[str, str], shared: bool) -> Iterator[str]:
    """Of files that git does not track, those that are code; the others are added to `left_out` with a reason.

    Args:
        shared: whether the group may read the project, so that what it can't read is private.
    """
    for name in names:
        if why := why_not_copied(root, name):
            left_out[name] = why
        elif why := why_data(root, name) or (why_private(root, name) if shared else ""):
            left_out[name] = f"not tracked by git, and {why}"
        else:
            yield name


def _walk(
    root: Path, left_out: dict[str, str], apart: Collection[str] = ("data", "results")
) -> Iterator[str]:
    """Files of a project without git: nothing hidden, no caches, no environments, and no folders of `apart` at the top."""

    def unreadable(error: OSError) -> None:
        left_out[os.path.relpath(error.filename, root)] = f"it can't be read ({error.strerror})"

    for folder, folders, files in os.walk(root, onerror=unreadable):
        here = Path(folder)
        top = apart if here == root else ()
        folders[:] = [
            f
            for f in folders
            if f[0] != "."
            and f != "__pycache__"
            and f not in top
            and not os.path.exists(here / f / "pyvenv.cfg")
        ]
        yield from (str((here / f).relative_to(root)) for f in files if f[0] != ".")


def _copy(root: Path, code: Path, names: Iterable[str], left_out: dict[str, str]) -> None:
    """Copy files and folders; sockets and the like are added to `left_out` with a reason."""
    os.makedirs(code, exist_ok=True)
    with suppress(OSError):  # a disk without permissions
        code.chmod(code.stat().st_mode & (root.stat().st_mode | 0o700))
    made = {""}
    for name in names:
        _make_folder(root, code, os.path.dirname(name.rstrip("/")), made)
        source, target = os.path.join(root, name), os.path.join(code, name)
        try:
            _copy_path(source, target)
        except _SpecialFileError as kind:
            left_out[name] = str(kind)
        except IsADirectoryError:  # a submodule, or another repository
            shutil.copytree(source, target, symlinks=True, ignore=_ignoring(root, left_out))


def _ignoring(root: Path, left_out: dict[str, str]) -> Callable[[str, list[str]], set[str]]:
    """For copytree: skips git's history and what must not be copied."""

    def ignore(folder: str, entries: list[str]) -> set[str]:
        found = {e: os.path.relpath(os.path.join(folder, e), root) for e in entries if e != ".git"}
        skipped = {e: why for e, name in found.items() if (why := why_not_copied(root, name))}
        left_out.update({found[e]: why for e, why in skipped.items()})
        return {".git", *skipped}

    return ignore


class _SpecialFileError(Exception):
    """A path has no content to copy."""


def _make_folder(root: Path, code: Path, folder: str, made: set[str]) -> None:
    """Make a folder, and those above it, no more open than that of the project."""
    if folder not in made:
        _make_folder(root, code, os.path.dirname(folder), made)
        with suppress(FileNotFoundError):  # deleted, but still in git's index
            mode = os.stat(os.path.join(root, folder)).st_mode & 0o777
            with suppress(FileExistsError):  # a folder has taken the place of a tracked file
                os.mkdir(os.path.join(code, folder), mode | 0o700)
        made.add(folder)


def _copy_path(source: str, target: str) -> None:
    try:
        _copy_file(source, target)
    except FileNotFoundError:  # deleted, but still in git's index
        return
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise _SpecialFileError("it is a socket") from None
        if error.errno != errno.ELOOP:
            raise
        if os.path.exists(source):  # a link: its target is copied, because that may be edited too
            _copy_path(os.path.realpath(source), target)


def _copy_file(source: str, target: str) -> None:
    """Copy bytes and permissions with as few system calls as possible, because shared disks answer each slowly."""
    no_waiting = os.O_NOFOLLOW | os.O_NONBLOCK  # opening a FIFO would wait for a writer
    read = os.open(source, os.O_RDONLY | no_waiting)
    try:
        mode = os.fstat(read).st_mode
        if kind := special(mode):
            raise _SpecialFileError(kind)
        if not stat.S_ISREG(mode):
            raise IsADirectoryError(source)
        write = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode & 0o777)
        try:
            while piece := os.read(read, PIECE):
                while piece:
                    piece = piece[os.write(write, piece) :]
        finally:
            os.close(write)
    finally:
        os.close(read)
