"""Copy what a program writes to its node's disk into the run folder.

A file that changes while it is copied, or was written a moment ago, is left for the next time, so a copy is never half of a file. A file
with the same size and time is not copied again. Files that the program removes stay in the run folder. A link inside of the folder is made
again, relative, when all that it leads to has been copied.
"""

import os
import shutil
import socket
import stat
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from train_anywhere.errors import CheckpointError, iterate_causes
from train_anywhere.files import removal
from train_anywhere.files.atomic import link_atomic, make_folder, replace
from train_anywhere.files.terminal.printable import printable

SETTLED_S, EVERY_S = 2.0, 600.0
"""A file is complete if nothing has been written to it for so long; seconds between two copies, if `checkpoint.every_n_seconds` is null."""


class Copier:
    """Copies new files of one folder to another in a background thread, every `every_seconds`.

    Attributes:
        open: files that the program was writing when it was asked to stop; None if that is not known.
        failed: files that the last copy could not write or read, such as on a full disk, and links that lead out of the folder.
    """

    def __init__(self, source: Path, target: Path, every_seconds: float) -> None:
        self.source, self.target, self.every_seconds = Path(os.path.realpath(source)), target, every_seconds
        self.open: set[Path] | None = None
        self.failed: list[str] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="copies", daemon=True)

    def start(self) -> None:
        """Start copying in the background."""
        self._thread.start()

    def find_open(self, pid: int) -> set[Path] | None:
        """Return the files that a process and its children are writing, or None if unknown."""
        import psutil  # reading a checkpoint needs none

        with suppress(psutil.Error):
            program, found = psutil.Process(pid), list[Path]()
            if program.num_fds():  # else it has ended
                for process in [program, *program.children(recursive=True)]:
                    with suppress(psutil.Error):
                        found += [Path(file.path) for file in process.open_files() if file.mode != "r"]
                return {path for path in found if path.is_relative_to(self.source)}
        return None

    def finish(self, killed: bool) -> list[str]:
        """Copy for the last time. Return the files of which an older copy stays.

        These are the files in `open`, or if that is None, the newest ones.
        """
        self._end.set()
        self._thread.join()
        now = time.time()

        def cut_off(path: Path, status: os.stat_result) -> bool:
            writing = status.st_mtime > now - SETTLED_S if self.open is None else path in self.open
            return killed and writing and (self.target / path.relative_to(self.source)).exists()

        return self._copy(cut_off)

    def copy(self) -> list[str]:
        """Copy the complete files, and return those that may not be complete."""
        now = time.time()
        return self._copy(lambda path, status: status.st_mtime > now - SETTLED_S)

    def describe_failed(self) -> str:
        """Return a message about the files in `failed`."""
        where = f"{self.source} on {socket.gethostname()}"
        return f"{len(self.failed)} files of {where} can't be copied to {self.target}, and stay there"

    def _copy(self, leaves_out: Callable[[Path, os.stat_result], bool]) -> list[str]:
        left: list[str] = []
        self.failed = []
        for path, status in sorted(_entries(self.source), key=lambda entry: stat.S_ISLNK(entry[1].st_mode)):
            name = path.relative_to(self.source)
            try:
                if stat.S_ISLNK(status.st_mode):
                    complete = self._copy_link(name, [*left, *self.failed])
                elif leaves_out(path, status):
                    complete = stat.S_ISDIR(status.st_mode)  # an empty folder is never half written
                else:
                    complete = _copy_entry(path, status, self.target, name)
                if not complete:
                    left.append(str(name))
            except OSError as error:
                if os.path.lexists(path):  # else the program has just removed it
                    self.failed.append(str(name))
                    why = error.strerror or error
                    removal.print_once(printable(f"{path} can't be copied to {self.target} ({why})."))
        return left

    def _copy_link(self, name: Path, missing: Sequence[str]) -> bool:
        """Make a link in the target. Return False if its end is `missing`. Raises OSError."""
        end = Path(os.path.realpath(self.source / name))
        if not end.is_relative_to(self.source):
            raise OSError(f"it is a link to {end}, outside of the folder")
        inside = end.relative_to(self.source)
        if any(Path(one).is_relative_to(inside) for one in missing):
            return False
        copy = self.target / name
        to = os.path.relpath(self.target / inside, copy.parent)
        known = copy.is_symlink() and os.readlink(copy) == to
        if known or inside == name or not (self.target / inside).exists():  # it leads nowhere, or is gone
            return True
        _make_parents(self.target, name)
        if not link_atomic(copy, to):
            raise OSError("it is a link now, but was none")
        return True

    def _run(self) -> None:
        while not self._end.wait(self.every_seconds):
            self.copy()


def copy_leftovers(place: removal.OwnedFolder, target: Path) -> str:
    """Copy what a killed rank left, and remove its folder. Return why it stays, or ""."""
    try:
        removal.check_owned(place, private=True)
    except OSError as error:
        return f"{place.path} can't be used ({error.strerror or error})"
    copier = Copier(place.path, target, 0)
    if left := copier.copy():
        time.sleep(SETTLED_S)
        left = copier.copy()
    if copier.failed:
        return copier.describe_failed()
    if left:
        return f"{len(left)} files of {copier.source} are still being written"
    removal.remove(place)
    return ""


def _entries(source: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the files, links and empty folders of a program below a folder."""
    for top, folders, names in os.walk(source):
        empty = [] if folders or names or top == str(source) else [Path(top)]
        kept = [name for name in (*names, *folders) if not removal.is_temporary(name)]
        for path in [Path(top, name) for name in kept] + empty:
            try:
                status = path.lstat()
            except OSError:  # the program has just removed it
                continue
            kind = stat.S_IFMT(status.st_mode)
            if (kind in (stat.S_IFREG, stat.S_IFLNK) and path != source / removal.MARKER) or path in empty:
                yield path, status


def _make_parents(target: Path, name: Path) -> None:
    for part in reversed(name.parents):
        make_folder(target / part)


def _copy_entry(path: Path, before: os.stat_result, target: Path, name: Path) -> bool:
    """Copy a file or an empty folder. Return False if it changes meanwhile. Raises OSError."""
    copy = target / name
    with suppress(OSError):
        there = copy.lstat()
        if (there.st_size, int(there.st_mtime)) == (before.st_size, int(before.st_mtime)):
            return True
    _make_parents(target, name)
    if stat.S_ISDIR(before.st_mode):
        make_folder(copy)
        return True
    temporary = removal.temporary_name(copy)
    try:
        shutil.copy2(path, temporary, follow_symlinks=False)
        after = path.lstat()
        unchanged = (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
        if unchanged:
            removal.remove_link(copy)
            replace(temporary, copy)
        return unchanged
    finally:
        removal.remove_file(temporary)


def refuse_compressed(file: Path) -> None:
    """Raise CheckpointError unless this is a zip file that unpacks to its own size."""
    try:
        with zipfile.ZipFile(file) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise CheckpointError(f"{file} can't be read: {error}.") from error
    if unpacked > file.stat().st_size:
        raise CheckpointError(
            f"{file} unpacks to {unpacked} bytes, and neither framework compresses its checkpoints: it is not read."
        )


CHUNK = 1 << 20
"""Bytes per read and write: few enough to stay in a core's cache, which saves the training memory bandwidth."""


def write_all(descriptor: int, data: memoryview) -> None:
    """Write all of `data`, of which one call of `os.write` may write only a part."""
    while data:
        data = data[os.write(descriptor, data) :]


def sync_folder(folder: Path) -> None:
    """Flush a folder, so that files created and renamed in it survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def find_disk_error(error: BaseException | None) -> OSError | None:
    """Return the OSError that caused an error, if any."""
    return next((one for one in iterate_causes(error) if isinstance(one, OSError)), None)


def print_line(text: str) -> None:
    """Print a line to the log."""
    print(text, file=sys.stderr, flush=True)
