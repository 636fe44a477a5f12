"""Copy what a program writes to its node's disk into the run folder: in the background, and at the end.

A file that changes while it is copied, or was written a moment ago, is left for the next time, so a copy is never half of a file. A file
with the same size and time is not copied again. Files that the program removes stay in the run folder.
"""

import os
import re
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from train_anywhere.files.atomic import replace
from train_anywhere.files.ordinary import make_folder
from train_anywhere.files.removal import print_once, remove_file, temporary_name

SETTLED_S = 2.0
"""A file is complete if nothing has been written to it for so long."""

EVERY_S = 600.0
"""Seconds between two copies, if `checkpoint.every_n_seconds` is null."""


class Copier:
    """Copies new files of one folder to another in a background thread.

    Args:
        source: the folder on the node's disk.
        target: the folder in the run folder.
        every_seconds: time between two copies.

    Attributes:
        open: files that the program was writing when it was asked to stop; None if that is not known.
        failed: files that the last copy could not write or read, such as on a full disk.
    """

    def __init__(self, source: Path, target: Path, every_seconds: float) -> None:
        self.source, self.target, self.every_seconds = source, target, every_seconds
        self.open: set[Path] | None = None
        self.failed: list[str] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="copies", daemon=True)

    def start(self) -> None:
        """Start copying in the background."""
        self._thread.start()

    def find_open(self, pid: int) -> set[Path] | None:
        """Return the files of the folder that a process is writing; None where /proc does not tell, or if the process has ended."""
        found = set()
        try:
            descriptors = [*Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:
            return None
        for fd in descriptors:
            with suppress(OSError):
                flags = re.search(r"flags:\s*(\d+)", Path(f"/proc/{pid}/fdinfo/{fd.name}").read_text())
                path = Path(os.readlink(fd))
                if path.is_relative_to(self.source) and flags and int(flags[1], 8) & os.O_ACCMODE:
                    found.add(path)
        return found if descriptors else None

    def finish(self, killed: bool) -> list[str]:
        """Copy for the last time; return the files of which an older copy stays, because the program was killed while it wrote them.

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
        """Copy the complete files; return those that may not be complete."""
        now = time.time()
        return self._copy(lambda path, status: status.st_mtime > now - SETTLED_S)

    def _copy(self, leaves_out: Callable[[Path, os.stat_result], bool]) -> list[str]:
        left, self.failed = [], []
        for path, status in _files(self.source):
            name = path.relative_to(self.source)
            if leaves_out(path, status):
                left.append(str(name))
                continue
            try:
                if not _is_same(status, self.target / name) and not _copy_file(
                    path, status, self.target, name
                ):
                    left.append(str(name))
            except OSError as error:
                self.failed.append(str(name))
                print_once(f"{path} can't be copied to {self.target} ({error.strerror or error}).")
        return left

    def _run(self) -> None:
        while not self._end.wait(self.every_seconds):
            self.copy()


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the ordinary files below a folder, without links and hidden ones, which are temporary or this project's."""
    for top, folders, names in os.walk(folder):
        folders[:] = [f for f in folders if not f.startswith(".")]
        for path in (Path(top, name) for name in names if not name.startswith(".")):
            try:
                status = path.lstat()
            except OSError:  # the program has just removed it
                continue
            if stat.S_ISREG(status.st_mode):
                yield path, status


def _is_same(status: os.stat_result, copy: Path) -> bool:
    try:
        there = copy.lstat()
    except OSError:
        return False
    return (there.st_size, int(there.st_mtime)) == (status.st_size, int(status.st_mtime))


def _copy_file(path: Path, before: os.stat_result, target: Path, name: Path) -> bool:
    """Copy a file to `target / name` in one step; return False, and change nothing, if it changed meanwhile. Raises OSError."""
    for part in reversed(name.parents):
        make_folder(target / part)
    copy = target / name
    temporary = temporary_name(copy)
    try:
        shutil.copy2(path, temporary, follow_symlinks=False)
        after = path.lstat()
        if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            return False
        replace(temporary, copy)
        return True
    finally:
        remove_file(temporary)
