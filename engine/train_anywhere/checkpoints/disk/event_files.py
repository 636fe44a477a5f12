"""TensorBoard's event files, synced from the node's local disk to the run folder.

Each attempt of a run writes new files, and files only grow, so a sync appends the missing tail. The training does that
every few seconds; after a crash `checkpoints/recovery.py` does it.
"""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from train_anywhere.checkpoints.disk.staging import Staging
from train_anywhere.files.atomic import make_folder, open_file
from train_anywhere.files.copy_files import CHUNK, find_disk_error, write_all
from train_anywhere.files.removal import print_once


class EventFileSync:
    """Background sync of a folder of event files on the node's disk to one in the run folder.

    A disk error is reported once, and never raised in the training.

    Args:
        staging: the folder on the node's disk; None: files are written directly to the run folder.

    Attributes:
        interval_s: time between two syncs, and between two tries after a disk error.
    """

    interval_s = 30.0

    def __init__(self, staging: Staging | None, target: Path) -> None:
        self.staging, self.target = staging, target
        self._straight = staging is None
        self._refused_until = 0.0
        self._wake, self._closing = threading.Event(), False
        self._thread = threading.Thread(target=self._work, name="event files", daemon=True)

    def prepare_folder(self) -> Path:
        """Make the folder for a new event file, and return it. Raises OSError."""
        wait_for_new_name(self.target)
        if self._straight or not self.staging:
            self.target.parent.mkdir(parents=True, exist_ok=True)
            make_folder(self.target)
            return self.target
        self.staging.claim()
        make_folder(self.staging.events)
        if not self._thread.ident:
            self._thread.start()
        return self.staging.events

    def try_write(self, write: Callable[[], None], reopen: Callable[[], None]) -> None:
        """Write to an event file, of the run folder if the node's disk fails, or retry later.

        `write` uses the open file, or a new one in `prepare_folder()`, and raises its other errors; `reopen` closes the open file.
        """
        if time.monotonic() < self._refused_until:
            return
        try:
            write()
        except Exception as error:  # frameworks wrap a disk error in their own
            reopen()
            trouble = find_disk_error(error)
            if not trouble:
                raise
            self._handle_refusal(trouble)
            self.try_write(write, reopen)

    def sync_soon(self) -> None:
        """Start a sync, and do not wait for it."""
        self._wake.set()

    def close(self) -> bool:
        """Sync the rest of flushed files. Return whether all of it is in the run folder."""
        self._closing = True
        self._wake.set()
        if self._thread.ident:
            self._thread.join()
        done = self._sync()
        if not done and self.staging:
            remedy = "make room, then `PYTHONPATH=engine python -m train_anywhere.checkpoints.recovery RUN` on this node"
            print_once(f"the rest of {self.target} is in {self.staging.events}: {remedy}.")
        return done

    def _work(self) -> None:
        while not self._closing:
            self._wake.wait(self.interval_s)
            self._wake.clear()
            self._sync()

    def _sync(self) -> bool:
        try:
            if self.staging and self.staging.is_owned():
                append_missing(self.staging.events, self.target)
        except OSError as trouble:
            why = trouble.strerror or trouble
            where = self.staging.events if self.staging else None
            print_once(f"{self.target} is behind {where} ({why}); training continues, retrying.")
            return False
        return True

    def _handle_refusal(self, trouble: OSError) -> None:
        """Switch to the run folder, or pause if the run folder failed."""
        folder = self.target if self._straight or not self.staging else self.staging.events
        then = "training continues, retrying" if self._straight else "continuing without it"
        print_once(f"{folder} takes no files ({trouble.strerror or trouble}); {then}.")
        if self._straight:
            self._refused_until = time.monotonic() + self.interval_s
        self._straight = True


def wait_for_new_name(folder: Path) -> None:
    """Wait until the name of a new file, with the time in seconds, sorts after all others.

    Within one second the process id would decide the order, and rows of an earlier attempt could follow the event that purges them.
    Names from the future, by another node's clock, are not waited for.
    """
    seconds = (file.name.split(".")[3:4] for file in folder.glob("events.out.tfevents.*"))
    newest = max((int(second) for [second] in seconds if second.isdecimal()), default=0)
    while 0 <= newest + 1 - time.time() <= 1:
        time.sleep(0.02)


def append_missing(source: Path, target: Path) -> None:
    """Append to each file in `target` what it lacks of `source`. Raises OSError."""
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
