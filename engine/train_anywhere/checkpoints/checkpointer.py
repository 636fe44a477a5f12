"""Asynchronous checkpointing, first to the node's local disk, then to the run folder, without a second copy in memory."""

import threading
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from train_anywhere.checkpoints.disk.manifest import CheckpointInfo, SavedCheckpoint
from train_anywhere.checkpoints.store import CheckpointStore, Staging, Write
from train_anywhere.errors import CheckpointError
from train_anywhere.files.copy_files import find_disk_error, print_line
from train_anywhere.files.removal import print_once

MAX_RETRY_S = 300.0
"""Maximum time between two tries to write."""


class StateLostError(Exception):
    """A state of which a part can't be written, so that training continues without this checkpoint."""


@dataclass
class WriteRequest:
    """A request to write the state in the buffers.

    Attributes:
        write: writes the files of the checkpoint into a folder.
        released: the worker is not reading the buffers.
        local: there is a node's disk, to which writing has not failed for this state.
    """

    write: Write
    info: CheckpointInfo
    local: bool
    released: bool = False


class AsyncCheckpointer(AbstractContextManager["AsyncCheckpointer"]):
    """Background writer of one run's checkpoints, and a context manager that closes it.

    Only the training thread may call its methods. A disk error does not stop training: it is reported once, and the write is retried
    with increasing pauses. Any other error stops the worker and is raised by the next `check`.

    Args:
        staging: checkpoints on the node's disk; None: write directly to the run folder.

    Attributes:
        patience_s: how long the last state is retried after training.
        first_retry_s: time until the first retry, doubled for each further one.
    """

    patience_s, first_retry_s = 60.0, 1.0

    def __init__(self, store: CheckpointStore, staging: Staging | None) -> None:
        self.store, self.staging = store, staging
        self.newest: SavedCheckpoint | None = None
        self._trouble: OSError | None = None  # keeps the newest state out of the run folder
        self._error: BaseException | None = None  # has stopped the worker
        self._request: WriteRequest | None = None
        self._failures = 0
        self._deadline: float | None = None  # for retries, set when training is over
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="checkpoints", daemon=True)
        self._thread.start()

    # --- called by the training thread --------------------------------------------------------------------

    def check(self) -> None:
        """Raise CheckpointError if the worker had an error. Each step can afford this call."""
        if isinstance(self._error, CheckpointError):
            raise self._error
        if self._error:
            raise CheckpointError(f"a checkpoint could not be written: {self._error!r}") from self._error

    @property
    def in_use(self) -> bool:
        """True while the worker reads the buffers or is about to."""
        return self._request is not None and not self._request.released

    def wait(self) -> None:
        """Wait until the buffers are free, or their state is lost. Raises CheckpointError as `check`."""
        with self._changed:
            self._changed.wait_for(lambda: not self.in_use)
            self._request = None
        self.check()

    def save(self, write: Write, info: CheckpointInfo) -> None:
        """Submit the buffers, which were filled after `wait`, and return at once. The worker calls `write`."""
        with self._changed:
            self._request = WriteRequest(write, info, local=self.staging is not None)
            self._changed.notify_all()

    def finish(self) -> None:
        """Wait until all is in the run folder, and stop the worker.

        Raises:
            CheckpointError: as `check`; or the newest state could not be published, and the message names the local copy.
        """
        with self._changed:
            self._deadline, self._failures = time.monotonic() + self.patience_s, 1
            self._changed.notify_all()
        self._thread.join()
        self.check()
        if trouble := self._trouble:
            left = self.staging.list_complete() if self.staging else []
            where = f"it is in {left[-1].path} on this node" if left else "it is lost"
            remedy = f"make room there, then resume{' on this node' if left else ''}"
            why = trouble.strerror or trouble
            raise CheckpointError(
                f"the newest checkpoint can't be written to {self.store.folder} ({why}); {where}: {remedy}."
            ) from trouble

    def write_again(self, write: Write, info: CheckpointInfo) -> SavedCheckpoint:
        """Write a checkpoint after `finish`, in place of one of the same step. Raises OSError."""
        self.newest = saved = self.store.write(write, info)
        return saved

    def close(self) -> None:
        """Call `finish`, and remove the files on the node's disk. Raises CheckpointError as `finish`."""
        self.finish()
        if self.staging:
            self.staging.clear()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Publish the submitted checkpoint, but do not wait for it after a second Ctrl-C."""
        if isinstance(error, KeyboardInterrupt):
            return
        try:
            self.close()
        except CheckpointError as problem:
            if error is None:
                raise
            if str(problem) != str(error):  # `error` itself is printed when the process exits
                print_line(str(problem))

    # --- the worker ---------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            self._attempt()
            while self._wait_for_work():
                self._attempt()
        except BaseException as error:
            with self._changed:
                self._error, self._request = error, None
                self._changed.notify_all()

    def _wait_for_work(self) -> bool:
        """Wait for work or the time to retry. Return False when nothing is left to write."""
        pause = min(self.first_retry_s * 2 ** (self._failures - 1), MAX_RETRY_S)
        with self._changed:
            if self._deadline is None:
                news = lambda: self.in_use or self._deadline is not None  # noqa: E731
                return self._changed.wait_for(news, pause if self._trouble else None) or True
            if self._trouble and not self.in_use:
                self._changed.wait(pause)
            return self.in_use or bool(self._trouble and time.monotonic() < self._deadline)

    def _attempt(self) -> None:
        """Write the state in the buffers, and publish the checkpoints on the node's disk."""
        try:
            self._write_state()
            while self.staging and (pending := self._list_pending(self.staging)):
                self.newest = self.store.publish(pending[0].path, self._write_to_node)
                self.staging.drop(pending[0].path)
            self._trouble, self._failures = None, 0
        except OSError as trouble:
            self._trouble, self._failures = trouble, self._failures + 1
            why = trouble.strerror or trouble
            print_once(f"{self.store.folder} takes no checkpoints ({why}); training continues, retrying.")

    def _write_to_node(self) -> None:
        """Write the state in the buffers to the node's disk, also while the one before is copied."""
        with self._changed:
            if not (request := self._request) or not request.local:
                return
            request.released = False
        assert self.staging
        try:
            self.staging.write(request.write, request.info)
        except Exception as error:
            # frameworks raise various errors when a disk is full; an error with another cause is raised by `_write_state` again
            request.local = False
            why = getattr(find_disk_error(error), "strerror", None) or error
            print_once(f"{self.staging.folder} takes no checkpoints ({why}); continuing without it.")
        else:
            self._release(request, done=True)

    def _write_state(self) -> None:
        """Write the state in the buffers to the node's disk or to the run folder. Flushing does not need the buffers."""
        self._write_to_node()
        with self._changed:
            if not (request := self._request) or request.local:
                return
            request.released = False

        def write(folder: Path) -> None:
            request.write(folder)
            self._release(request)

        try:
            self.newest = self.store.write(write, request.info)
        except StateLostError as lost:
            print_line(f"{lost}; continuing without it.")
        except Exception as error:
            self._release(request)
            if trouble := find_disk_error(error):
                raise trouble from None
            raise
        self._release(request, done=True)

    def _list_pending(self, staging: Staging) -> list[SavedCheckpoint]:
        """Return the checkpoints to publish, and drop those that the rule would not keep."""
        pending = staging.list_complete()
        kept = replace(self.store.rule, keep_last=1).kept([*self.store.all(), *pending])
        for saved in pending:
            if saved.path not in kept:
                staging.drop(saved.path)
        return [saved for saved in pending if saved.path in kept]

    def _release(self, request: WriteRequest, done: bool = False) -> None:
        with self._changed:
            request.released = True
            if done and self._request is request:
                self._request = None
            self._changed.notify_all()
