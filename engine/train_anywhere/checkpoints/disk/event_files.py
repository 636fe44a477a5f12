"""TensorBoard's event files: written on the node's own disk, and synced from there into the run folder.

Each attempt of a run writes files of its own, and files only grow, so syncing one means appending its missing tail. The
training does that every few seconds; after a crash `checkpoints/recovery.py` does it.
"""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from train_anywhere.checkpoints.disk.staging import Staging
from train_anywhere.checkpoints.disk.writes import CHUNK, disk_trouble, say, write_all
from train_anywhere.files.ordinary import make_folder, open_file


class EventFileSync:
    """Keeps a folder of event files in the run folder up to date with one on the node's disk.

    A disk error is reported once, and never reaches the training.

    Args:
        staging: on the node's disk; None: files are written straight into the run folder.
        target: in the run folder.
        tell: prints a line; called from any thread.

    Attributes:
        interval_s: time between two syncs, and until a disk that refused is tried again.
    """

    interval_s = 30.0

    def __init__(self, staging: Staging | None, target: Path, tell: Callable[[str], None] = say) -> None:
        self.staging, self.target, self.tell = staging, target, tell
        self._straight = staging is None
        self._refused_until = 0.0
        self._reported: set[str] = set()
        self._wake, self._closing = threading.Event(), False
        self._thread = threading.Thread(target=self._work, name="event files", daemon=True)

    def open(self) -> Path:
        """The folder to make a new file in. Raises OSError if its disk refuses."""
        wait_for_later_name(self.target)
        if self._straight or not self.staging:
            self.target.parent.mkdir(parents=True, exist_ok=True)
            make_folder(self.target)
            return self.target
        self.staging.own()
        make_folder(self.staging.events)
        if not self._thread.ident:
            self._thread.start()
        return self.staging.events

    def attempt(self, write: Callable[[], None], reopen: Callable[[], None]) -> None:
        """Write to a file. If the node's disk refuses, a new file in the run folder is used; if that refuses, it is retried later.

        Args:
            write: writes to the file in use; to a new one in `open()` if there is none.
            reopen: stops using the file in use.

        Raises:
            Exception: what `write` raises, unless a disk is the cause.
        """
        if time.monotonic() < self._refused_until:
            return
        try:
            write()
        except Exception as error:  # frameworks wrap the error of a disk
            reopen()
            trouble = disk_trouble(error)
            if not trouble:
                raise
            self._refused(trouble)
            self.attempt(write, reopen)

    def sync_soon(self) -> None:
        """Sync now; does not wait for it."""
        self._wake.set()

    def close(self) -> bool:
        """Sync the rest; returns whether all of it is in the run folder. The files must have been flushed."""
        self._closing = True
        self._wake.set()
        if self._thread.ident:
            self._thread.join()
        done = self._sync()
        if not done and self.staging:
            remedy = "make room, then `PYTHONPATH=engine python -m train_anywhere.checkpoints.recovery RUN` on this node"
            self._tell_once(f"the rest of {self.target} is in {self.staging.events}: {remedy}.")
        return done

    def _work(self) -> None:
        while not self._closing:
            self._wake.wait(self.interval_s)
            self._wake.clear()
            self._sync()

    def _sync(self) -> bool:
        try:
            if self.staging and self.staging.owned():
                append_all(self.staging.events, self.target)
        except OSError as trouble:
            why = trouble.strerror or trouble
            where = self.staging.events if self.staging else None
            self._tell_once(f"{self.target} is behind {where} ({why}); training continues, retrying.")
            return False
        return True

    def _refused(self, trouble: OSError) -> None:
        """Switch to the run folder, or wait if that is the one that refused."""
        folder = self.target if self._straight or not self.staging else self.staging.events
        then = "training continues, retrying" if self._straight else "continuing without it"
        self._tell_once(f"{folder} takes no files ({trouble.strerror or trouble}); {then}.")
        if self._straight:
            self._refused_until = time.monotonic() + self.interval_s
        self._straight = True

    def _tell_once(self, text: str) -> None:
        if text not in self._reported:
            self._reported.add(text)
            self.tell(text)


def wait_for_later_name(folder: Path) -> None:
    """Wait until a new file comes after those that are there: files are read in the order of their names, which begin with the second.

    Of two in one second the process id would decide, and what an earlier attempt has written would follow what purges it. Names
    from the future, by another node's clock, are not waited for.
    """
    seconds = (file.name.split(".")[3:4] for file in folder.glob("events.out.tfevents.*"))
    newest = max((int(second) for [second] in seconds if second.isdecimal()), default=0)
    while 0 <= newest + 1 - time.time() <= 1:
        time.sleep(0.02)


def append_all(source: Path, target: Path) -> None:
    """Append to each file in `target` the tail that it lacks of the file with the same name in `source`.

    Raises:
        OSError: the disk does not take it; each file in `target` is then a shorter version of its source.
    """
    for file in sorted(source.glob("*")):
        target.parent.mkdir(parents=True, exist_ok=True)
        make_folder(target)
        _append(file, target / file.name)


def _append(source: Path, target: Path) -> None:
    there = target.stat().st_size if target.exists() else 0
    if target.exists() and source.stat().st_size <= there:
        return
    with open(source, "rb") as reader, open_file(target, "ab") as writer:
        reader.seek(there)
        try:
            while chunk := reader.read(CHUNK):
                write_all(writer.fileno(), memoryview(chunk))
            os.fsync(writer.fileno())
        except OSError:
            with suppress(OSError):  # bytes that did not reach the disk must not count as written
                writer.truncate(there)
            raise
