"""The worker thread that writes checkpoints to disk while training continues."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from train_anywhere.checkpoints.disk.staging import Staging, Write
from train_anywhere.checkpoints.disk.writes import find_disk_error
from train_anywhere.checkpoints.info import CheckpointInfo, SavedCheckpoint
from train_anywhere.checkpoints.store import CheckpointStore

MAX_RETRY_S = 300.0
"""Maximum time between two tries to write."""


@dataclass
class WriteRequest:
    """A request to write the state in the buffers.

    Attributes:
        write: writes the files of the checkpoint into a folder.
        info: position and metrics of the training.
        released: the worker is not reading the buffers.
        local: writing to the node's disk has not failed for this state.
    """

    write: Write
    info: CheckpointInfo
    released: bool = False
    local: bool = True


class Worker:
    """The thread that writes the buffers to the node's disk, and copies complete checkpoints from there to the run folder.

    A disk error is reported once, and the write is retried with increasing pauses. Any other error stops the worker.

    Args:
        store: checkpoints in the run folder.
        staging: checkpoints on the node's disk; None: write directly to the run folder.
        report: prints a line.

    Attributes:
        newest: the newest checkpoint in the run folder.
        trouble: the disk error that keeps the newest state out of the run folder, if any.
        error: the error that stopped the worker, if any.
        patience_s: how long the last state is retried after training.
        first_retry_s: time until the first retry, doubled for each further one.
    """

    patience_s, first_retry_s = 60.0, 1.0

    def __init__(
        self, store: CheckpointStore, staging: Staging | None, report: Callable[[str], None]
    ) -> None:
        self.store, self.staging, self.report = store, staging, report
        self.newest: SavedCheckpoint | None = None
        self.trouble: OSError | None = None
        self.error: BaseException | None = None
        self._request: WriteRequest | None = None
        self._failures = 0
        self._reported: set[str] = set()
        self._deadline: float | None = None  # for retries, set when training is over
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="checkpoints", daemon=True)
        self._thread.start()

    # --- called by the training thread --------------------------------------------------------------------

    @property
    def in_use(self) -> bool:
        """True while the worker reads the buffers or is about to."""
        return self._request is not None and not self._request.released

    def acquire(self) -> None:
        """Wait until the buffers are free. A state in them that could not be written to any disk is dropped."""
        with self._changed:
            self._changed.wait_for(lambda: not self.in_use)
            self._request = None

    def submit(self, request: WriteRequest) -> None:
        """Submit a new state in the buffers."""
        with self._changed:
            self._request = request
            self._changed.notify_all()

    def finish(self) -> None:
        """Wait until everything is written, `patience_s` at most, and stop the thread."""
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
        """Wait for a request or for the time to retry; return False when there is nothing more to write."""
        pause = min(self.first_retry_s * 2 ** (self._failures - 1), MAX_RETRY_S)
        with self._changed:
            if self._deadline is None:
                news = lambda: self.in_use or self._deadline is not None  # noqa: E731
                return self._changed.wait_for(news, pause if self.trouble else None) or True
            if self.trouble and not self.in_use:
                self._changed.wait(pause)
            return self.in_use or bool(self.trouble and time.monotonic() < self._deadline)

    def _attempt(self) -> None:
        """Write the state in the buffers, and publish the checkpoints on the node's disk."""
        try:
            self._write()
            self._publish()
            self.trouble, self._failures = None, 0
        except OSError as trouble:
            self.trouble, self._failures = trouble, self._failures + 1
            why = trouble.strerror or trouble
            self._report_once(
                f"{self.store.folder} takes no checkpoints ({why}); training continues, retrying."
            )

    def _write(self) -> None:
        request = self._take()
        if request and not self._write_local(request):
            self._write_shared(request)

    def _write_local(self, request: WriteRequest) -> bool:
        """Write to the node's disk; return whether that succeeded."""
        if not (self.staging and request.local):
            return False
        try:
            self.staging.write(request.write, request.info)
        except Exception as error:
            # frameworks raise various errors when a disk is full; an error with another cause is raised by `_write_shared` again
            request.local = False
            why = getattr(find_disk_error(error), "strerror", None) or error
            self._report_once(f"{self.staging.folder} takes no checkpoints ({why}); continuing without it.")
            return False
        self._release(request, done=True)
        return True

    def _write_shared(self, request: WriteRequest) -> None:
        """Write directly to the run folder; the buffers are released before the data is flushed to disk."""
        temporary = None
        try:
            temporary = self.store.make_temporary(request.info.step)
            request.write(temporary)
            self._release(request)
            self.newest = self.store.commit(temporary, request.info)
            self._release(request, done=True)
        except Exception as error:
            if temporary:
                self.store.remove_temporary(temporary)
            self._release(request)
            if trouble := find_disk_error(error):
                raise trouble from None
            raise

    def _publish(self) -> None:
        """Copy the checkpoints on the node's disk into the run folder, in the order of steps."""
        while self.staging and (pending := self._list_pending(self.staging)):
            self.newest = self.store.publish(pending[0].path, self._write_next_locally)
            self.staging.drop(pending[0].path)

    def _list_pending(self, staging: Staging) -> list[SavedCheckpoint]:
        """Return the checkpoints to publish; drop those that the rule would not keep."""
        pending = staging.list_complete()
        kept = replace(self.store.rule, keep_last=1).reasons([*self.store.all(), *pending])
        for saved in pending:
            if saved.path not in kept:
                staging.drop(saved.path)
        return [saved for saved in pending if saved.path in kept]

    def _write_next_locally(self) -> None:
        """Write the next checkpoint to the node's disk while one is copied, so that the buffers are released soon."""
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

    def _report_once(self, text: str) -> None:
        if text not in self._reported:
            self._reported.add(text)
            self.report(text)
