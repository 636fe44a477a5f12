"""The thread that brings checkpoints to disks while the training goes on."""

import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from src.checkpoints.staging import Stage, Write
from src.checkpoints.store import CheckpointStore, Saved

LAST_RETRY = 300.0
"""Longest wait in seconds until what failed is tried again."""


@dataclass
class Job:
    """A state in the training's buffers.

    Attributes:
        write: writes its files into a folder.
        facts: the fields of `Saved`.
        released: the worker does not read the buffers any more, or just now.
        local: the node's disk has not refused it yet.
    """

    write: Write
    facts: Mapping[str, Any]
    released: bool = False
    local: bool = True


def say(text: str) -> None:
    """Tell the person who reads the log."""
    print(text, file=sys.stderr, flush=True)


class Worker:
    """Writes the state in the buffers to the node's disk, and copies what is complete there into the run folder.

    Trouble with disks is told once and tried again, less and less often. Any other error ends the worker.

    Args:
        store: of the run folder.
        stage: on the node's disk; None: write straight into the run folder.
        tell: prints a line.

    Attributes:
        newest: the newest checkpoint that was published.
        trouble: why the newest state is not in the run folder, None if it is.
        error: what ended the worker.
        patience: seconds that the last state is tried to be published when the run is over.
        first_retry: seconds until what failed is tried again, doubled each time.
    """

    patience, first_retry = 60.0, 1.0

    def __init__(self, store: CheckpointStore, stage: Stage | None, tell: Callable[[str], None]) -> None:
        self.store, self.stage, self.tell = store, stage, tell
        self.newest: Saved | None = None
        self.trouble: OSError | None = None
        self.error: BaseException | None = None
        self._job: Job | None = None
        self._failures = 0
        self._told: set[str] = set()
        self._deadline: float | None = None  # of the last attempts, once the run is over
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="checkpoints", daemon=True)
        self._thread.start()

    # --- called by the training thread --------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether the buffers are in use."""
        return self._job is not None and not self._job.released

    def take_back(self) -> None:
        """Wait until the buffers are free. What they held and no disk has taken so far is given up."""
        with self._changed:
            self._changed.wait_for(lambda: not self.busy)
            self._job = None

    def hand_over(self, job: Job) -> None:
        """The buffers hold a new state."""
        with self._changed:
            self._job = job
            self._changed.notify_all()

    def finish(self) -> None:
        """Wait until all is done, or can't be done."""
        with self._changed:
            self._deadline, self._failures = time.monotonic() + self.patience, 1
            self._changed.notify_all()
        self._thread.join()

    # --- the thread itself --------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            self._attempt()
            while self._wait():
                self._attempt()
        except BaseException as error:
            with self._changed:
                self.error, self._job = error, None
                self._changed.notify_all()

    def _wait(self) -> bool:
        """For something to do, or for the time to try again; False when the run is over and all is done."""
        pause = min(self.first_retry * 2 ** (self._failures - 1), LAST_RETRY)
        with self._changed:
            if self._deadline is None:
                news = lambda: self.busy or self._deadline is not None  # noqa: E731
                return self._changed.wait_for(news, pause if self.trouble else None) or True
            if self.trouble and not self.busy:
                self._changed.wait(pause)
            return self.busy or bool(self.trouble and time.monotonic() < self._deadline)

    def _attempt(self) -> None:
        """Write and publish whatever there is."""
        try:
            self._write()
            self._publish()
            self.trouble, self._failures = None, 0
        except OSError as trouble:
            self.trouble, self._failures = trouble, self._failures + 1
            why = trouble.strerror or trouble
            self._tell_once(f"{self.store.folder} takes no checkpoints ({why}); going on, trying again.")

    def _write(self) -> None:
        job = self._take()
        if job and not self._write_local(job):
            self._write_shared(job)

    def _write_local(self, job: Job) -> bool:
        """To the node's disk; False where that can't be."""
        if not (self.stage and job.local):
            return False
        try:
            self.stage.write(job.write, job.facts)
        except Exception as error:  # frameworks raise anything when a disk is full; the next disk will tell
            job.local = False
            self._tell_once(f"{self.stage.folder} takes no checkpoints ({error}); doing without it.")
            return False
        self._release(job, done=True)
        return True

    def _write_shared(self, job: Job) -> None:
        """To the run folder; the buffers are free before the data is on the disk."""
        temporary = None
        try:
            temporary = self.store.begin(job.facts["step"])
            job.write(temporary)
            self._release(job)
            self.newest = self.store.commit(temporary, **job.facts)
            self._release(job, done=True)
        except Exception as error:
            if temporary:
                self.store.give_up(temporary)
            self._release(job)
            raise disk_trouble(error) or error from error

    def _publish(self) -> None:
        """Copy what the node's disk holds into the run folder, in the order of steps."""
        while self.stage and (waiting := self._waiting(self.stage)):
            self.newest = self.store.publish(waiting[0].path, self._between_chunks)
            self.stage.drop(waiting[0].path)

    def _waiting(self, stage: Stage) -> list[Saved]:
        """What is worth publishing; what a newer one has replaced meanwhile is dropped."""
        waiting = stage.complete()
        worth = replace(self.store.rule, keep_last=1).reasons([*self.store.all(), *waiting])
        for saved in waiting:
            if saved.path not in worth:
                stage.drop(saved.path)
        return [saved for saved in waiting if saved.path in worth]

    def _between_chunks(self) -> None:
        """While one is being copied, write the next one to the node's disk: the buffers are free soon."""
        job = self._take() if self._job and self._job.local and self.busy else None
        if job:
            self._write_local(job)

    def _take(self) -> Job | None:
        with self._changed:
            if self._job:
                self._job.released = False
            return self._job

    def _release(self, job: Job, done: bool = False) -> None:
        with self._changed:
            job.released = True
            if done and self._job is job:
                self._job = None
            self._changed.notify_all()

    def _tell_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self.tell(text)


def disk_trouble(error: BaseException | None) -> OSError | None:
    """The OSError that caused an error, if one did."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error
