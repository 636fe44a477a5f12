"""Files that only grow, such as TensorBoard's: written to the node's own disk, and from there to the shared one.

Each part of a run writes files of its own. What the shared disk lacks of one is therefore its end, whoever adds it:
the training every few seconds, or what comes after it has died.
"""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from src.checkpoints.manifest import CHUNK, write_all
from src.checkpoints.staging import Stage
from src.checkpoints.writer import disk_trouble, say


class Mirror:
    """A folder of growing files on the node's disk, and the one in the run folder that gets all of it.

    Trouble with a disk is told once, and never reaches the training.

    Args:
        stage: on the node's disk; None: files are written straight into the run folder.
        target: in the run folder.
        tell: prints a line; called from any thread.

    Attributes:
        every: seconds between two looks for what is new, and until a disk is tried again.
    """

    every = 30.0

    def __init__(self, stage: Stage | None, target: Path, tell: Callable[[str], None] = say) -> None:
        self.stage, self.target, self.tell = stage, target, tell
        self._straight = stage is None
        self._refused_until = 0.0
        self._told: set[str] = set()
        self._news, self._over = threading.Event(), False
        self._thread = threading.Thread(target=self._work, name="growing files", daemon=True)

    def open(self) -> Path:
        """The folder to make a new file in. Raises OSError where its disk refuses."""
        if self._straight or not self.stage:
            self.target.mkdir(parents=True, exist_ok=True)
            return self.target
        self.stage.own()
        self.stage.growing.mkdir(exist_ok=True)
        if not self._thread.ident:
            self._thread.start()
        return self.stage.growing

    def attempt(self, write: Callable[[], None], reopen: Callable[[], None]) -> None:
        """Write to a file. Where the node's disk refuses, the run folder takes a new one; where that refuses, later.

        Args:
            write: to the file in use; to a new one in `open()` if there is none.
            reopen: the file in use is given up.

        Raises:
            Exception: what `write` raises and no disk is the cause of.
        """
        if time.monotonic() < self._refused_until:
            return
        try:
            write()
        except Exception as error:  # frameworks wrap what a disk says
            reopen()
            trouble = disk_trouble(error)
            if not trouble:
                raise
            self._refused(trouble)
            self.attempt(write, reopen)

    def soon(self) -> None:
        """Look now; does not wait for it."""
        self._news.set()

    def close(self) -> bool:
        """Write the rest; whether all is in the run folder now. The files must have been flushed."""
        self._over = True
        self._news.set()
        if self._thread.ident:
            self._thread.join()
        done = self._copy()
        if not done and self.stage:
            remedy = "make room, then `python -m src.checkpoints.checkpointer RUN` on this node"
            self._tell_once(f"the rest of {self.target} is in {self.stage.growing}: {remedy}.")
        return done

    def _work(self) -> None:
        while not self._over:
            self._news.wait(self.every)
            self._news.clear()
            self._copy()

    def _copy(self) -> bool:
        try:
            if self.stage and self.stage.owned():
                append_all(self.stage.growing, self.target)
        except OSError as trouble:
            why = trouble.strerror or trouble
            where = self.stage.growing if self.stage else None
            self._tell_once(f"{self.target} is behind {where} ({why}); going on, trying again.")
            return False
        return True

    def _refused(self, trouble: OSError) -> None:
        """Go over to the run folder, or wait where that is it that refused."""
        folder = self.target if self._straight or not self.stage else self.stage.growing
        then = "going on, trying again" if self._straight else "doing without it"
        self._tell_once(f"{folder} takes no files ({trouble.strerror or trouble}); {then}.")
        if self._straight:
            self._refused_until = time.monotonic() + self.every
        self._straight = True

    def _tell_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self.tell(text)


def append_all(source: Path, target: Path) -> None:
    """Append to the files in `target` what those of the same names in `source` have more.

    Raises:
        OSError: where the disk does not take it; what is there is a beginning of what is to be there.
    """
    for file in sorted(source.glob("*")):
        target.mkdir(parents=True, exist_ok=True)
        _append(file, target / file.name)


def _append(source: Path, target: Path) -> None:
    there = target.stat().st_size if target.exists() else 0
    if target.exists() and source.stat().st_size <= there:
        return
    with open(source, "rb") as reader, open(target, "ab", buffering=0) as writer:
        reader.seek(there)
        try:
            while chunk := reader.read(CHUNK):
                write_all(writer.fileno(), memoryview(chunk))
            os.fsync(writer.fileno())
        except OSError:
            with suppress(OSError):  # bytes that did not reach the disk must not count as there
                os.ftruncate(writer.fileno(), there)
            raise
