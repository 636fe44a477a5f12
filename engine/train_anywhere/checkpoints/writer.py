"""The worker thread that writes checkpoints to disk while training continues."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from train_anywhere.checkpoints.disk.staging import Staging, Write
from train_anywhere.checkpoints.disk.writes import disk_trouble
from train_anywhere.checkpoints.info import CheckpointInfo, SavedCheckpoint
from train_anywhere.checkpoints.store import CheckpointStore

MAX_RETRY_S = 300.0
"""Longest wait until what failed is retried."""


@dataclass
class WriteRequest:
    """A state in the training's buffers.

    Attributes:
        write: writes its files into a folder.
        info: where the training stood.
        released: the worker is not reading the buffers.
        local: the node's disk has not refused it yet.
    """

    write: Write
    info: CheckpointInfo
    released: bool = False
    local: bool = True


class Worker:
    """Writes the state in the buffers to the node's disk, and copies what is complete there into the run folder.

    A disk error is reported once and retried, less and less often. Any other error ends the worker.

    Args:
        store: of the run folder.
        staging: on the node's disk; None: write straight into the run folder.
        tell: prints a line.

    Attributes:
        newest: the newest checkpoint that is in the run folder.
        trouble: why the newest state is not in the run folder, None if it is.
        error: what ended the worker.
        patience_s: how long the last state is retried when the run is over.
        first_retry_s: time until what failed is retried, doubled each time.
    """

    patience_s, first_retry_s = 60.0, 1.0

    def __init__(self, store: CheckpointStore, staging: Staging | None, tell: Callable[[str], None]) -> None:
        self.store, self.staging, self.tell = store, staging, tell
        self.newest: SavedCheckpoint | None = None
        self.trouble: OSError | None = None
        self.error: BaseException | None = None
        self._request: WriteRequest | None = None
        self._failures = 0
        self._reported: set[str] = set()
        self._deadline: float | None = None  # of the last attempts, once the run is over
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="checkpoints", daemon=True)
        self._thread.start()

    # --- called by the training thread --------------------------------------------------------------------

    @property
    def in_use(self) -> bool:
        """Whether the worker reads the buffers, or is about to."""
        return self._request is not None and not self._request.released

    def acquire(self) -> None:
        """Wait until the buffers are free. A state in them that no disk has accepted yet is dropped."""
        with self._changed:
            self._changed.wait_for(lambda: not self.in_use)
            self._request = None

    def submit(self, request: WriteRequest) -> None:
        """The buffers hold a new state."""
        with self._changed:
            self._request = request
            self._changed.notify_all()

    def finish(self) -> None:
        """Wait until all is written, or `patience_s` is over, and end the thread."""
        with self._changed:
            self._deadline, self._failures = time.monotonic() + self.patience_s, 1
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
                self.error, self._request = error, None
                self._changed.notify_all()

    def _wait(self) -> bool:
        """Wait for a request, or for the time to retry; False when the run is over and all is done."""
        pause = min(self.first_retry_s * 2 ** (self._failures - 1), MAX_RETRY_S)
        with self._changed:
            if self._deadline is None:
                news = lambda: self.in_use or self._deadline is not None  # noqa: E731
                return self._changed.wait_for(news, pause if self.trouble else None) or True
            if self.trouble and not self.in_use:
                self._changed.wait(pause)
            return self.in_use or bool(self.trouble and time.monotonic() < self._deadline)

    def _attempt(self) -> None:
        """Write and publish whatever there is."""
        try:
            self._write()
            self._publish()
            self.trouble, self._failures = None, 0
        except OSError as trouble:
            self.trouble, self._failures = trouble, self._failures + 1
            why = trouble.strerror or trouble
            self._tell_once(
                f"{self.store.folder} takes no checkpoints ({why}); training continues, retrying."
            )

    def _write(self) -> None:
        request = self._take()
        if request and not self._write_local(request):
            self._write_shared(request)

    def _write_local(self, request: WriteRequest) -> bool:
        """Write to the node's disk; False if that is not possible."""
        if not (self.staging and request.local):
            return False
        try:
            self.staging.write(request.write, request.info)
        except Exception as error:
            # frameworks raise anything when a disk is full; any other error comes back in `_write_shared`
            request.local = False
            why = getattr(disk_trouble(error), "strerror", None) or error
            self._tell_once(f"{self.staging.folder} takes no checkpoints ({why}); continuing without it.")
            return False
        self._release(request, done=True)
        return True

    def _write_shared(self, request: WriteRequest) -> None:
        """Write straight to the run folder; the buffers are free before the data is on the disk."""
        temporary = None
        try:
            temporary = self.store.begin(request.info.step)
            request.write(temporary)
            self._release(request)
            self.newest = self.store.commit(temporary, request.info)
            self._release(request, done=True)
        except Exception as error:
            if temporary:
                self.store.give_up(temporary)
            self._release(request)
            if trouble := disk_trouble(error):
                raise trouble from None
            raise

    def _publish(self) -> None:
        """Copy the checkpoints on the node's disk into the run folder, in the order of steps."""
        while self.staging and (waiting := self._waiting(self.staging)):
            self.newest = self.store.publish(waiting[0].path, self._between_chunks)
            self.staging.drop(waiting[0].path)

    def _waiting(self, staging: Staging) -> list[SavedCheckpoint]:
        """The checkpoints worth publishing; those that a newer one has superseded are dropped."""
        waiting = staging.complete()
        worth = replace(self.store.rule, keep_last=1).reasons([*self.store.all(), *waiting])
        for saved in waiting:
            if saved.path not in worth:
                staging.drop(saved.path)
        return [saved for saved in waiting if saved.path in worth]

    def _between_chunks(self) -> None:
        """While one checkpoint is copied, write the next to the node's disk, so that its buffers are free soon."""
        request = self._take() if self._request and self._request.local and self.in_use else None
        if request:
            self._write_local(request)

    def _take(self) -> WriteRequest | None:
        with self._changed:
            if self._request:
                self._request.released = False
            return self._request

    def _release(self, request: WriteRequest, done: bool = False) -> None:
        with self._changed:
            request.released = True
            if done and self._request is request:
                self._request = None
            self._changed.notify_all()

    def _tell_once(self, text: str) -> None:
        if text not in self._reported:
            self._reported.add(text)
            self.tell(text)
