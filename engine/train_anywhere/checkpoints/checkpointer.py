"""Asynchronous checkpointing, first to the node's local disk, then to the run folder.

The training thread copies its state into buffers that all checkpoints reuse, and continues. A worker thread writes the buffers to the
node's disk, which frees them, and then copies the files to the run folder. It makes no second copy in memory. TensorBoard's files take
the same way, see `checkpoints/disk/event_files.py`.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from train_anywhere.checkpoints.disk.event_files import EventFileSync
from train_anywhere.checkpoints.disk.staging import Staging, Write
from train_anywhere.checkpoints.disk.writes import print_line
from train_anywhere.checkpoints.info import CheckpointInfo, SavedCheckpoint
from train_anywhere.checkpoints.store import CheckpointStore
from train_anywhere.checkpoints.writer import Worker, WriteRequest
from train_anywhere.errors import CheckpointError


class AsyncCheckpointer:
    """Background writer of one run's checkpoints, and a context manager that calls `close` at its end.

    Only the training thread may call its methods. A disk error does not stop training: it is reported once and the write is retried.
    Any other error of the worker is raised by the next `check`.

    Args:
        store: checkpoints in the run folder.
        staging: checkpoints on the node's disk; None: write directly to the run folder.
        events: syncs TensorBoard's files from a staging folder, which is `staging` unless that is None. The checkpointer closes it and
            then removes the staging folder.
        report: prints a line; called from the worker.
    """

    def __init__(
        self,
        store: CheckpointStore,
        staging: Staging | None,
        events: EventFileSync,
        report: Callable[[str], None] = print_line,
    ) -> None:
        self.store, self.staging, self.events, self.report = store, staging, events, report
        self.worker = Worker(store, staging, report)

    @property
    def newest(self) -> SavedCheckpoint | None:
        """The newest checkpoint that is in the run folder."""
        return self.worker.newest

    def newest_good(self) -> SavedCheckpoint | None:
        """Return the newest checkpoint that can be read."""
        return self.store.newest_good()

    def best(self) -> SavedCheckpoint | None:
        """Return the best checkpoint."""
        return self.store.best()

    def check(self) -> None:
        """Raise the error of the worker, if any; cheap enough to call at each step.

        Raises:
            CheckpointError: chained to the worker's error.
        """
        if self.worker.error:
            raise CheckpointError(
                f"a checkpoint could not be written: {self.worker.error!r}"
            ) from self.worker.error

    def wait(self) -> None:
        """Wait until the buffers may be filled. A state in them that could not be written to any disk is dropped.

        Raises:
            CheckpointError: as `check`.
        """
        self.worker.acquire()
        self.check()

    def save(self, write: Write, info: CheckpointInfo) -> None:
        """Submit the buffers, which were filled after `wait`, and return at once.

        Args:
            write: writes the files of the checkpoint from the buffers into a folder; called by the worker.
            info: position and metrics of the training.
        """
        self.worker.submit(WriteRequest(write, info))
        self.events.sync_soon()

    def finish(self) -> None:
        """Wait until all checkpoints are in the run folder, and stop the worker; event files are still synced.

        Raises:
            CheckpointError: as `check`; or the newest state could not be published, and the message names the local copy.
        """
        self.worker.finish()
        self.check()
        if self.worker.trouble:
            raise CheckpointError(self._unpublished_message(self.worker.trouble)) from self.worker.trouble

    def write_again(self, write: Write, info: CheckpointInfo) -> SavedCheckpoint:
        """Write a checkpoint synchronously, after `finish`; it replaces one of the same step. Raises OSError."""
        write(temporary := self.store.make_temporary(info.step))
        self.worker.newest = saved = self.store.commit(temporary, info)
        return saved

    def close(self) -> None:
        """Wait until everything is in the run folder, and remove the files on the node's disk.

        Raises:
            CheckpointError: as `finish`.
        """
        try:
            self.finish()
        finally:
            synced = self.events.close()
        if self.events.staging and synced:
            self.events.staging.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Publish the submitted checkpoint, also after an error; only after a second Ctrl-C do not wait for it."""
        if isinstance(error, KeyboardInterrupt):
            return
        try:
            self.close()
        except CheckpointError as problem:
            if error is None:
                raise
            if str(problem) != str(error):  # `error` itself is printed when the process exits
                self.report(str(problem))

    def _unpublished_message(self, trouble: OSError) -> str:
        left = self.staging.list_complete() if self.staging else []
        where = f"it is in {left[-1].path} on this node" if left else "it is lost"
        remedy = f"make room there, then resume{' on this node' if left else ''}"
        why = trouble.strerror or trouble
        return f"the newest checkpoint can't be written to {self.store.folder} ({why}); {where}: {remedy}."


class NoCheckpointer:
    """The checkpointer of a process that writes no checkpoints: one rank of several, or a `fast_dev_run`."""

    newest: SavedCheckpoint | None = None
    events: EventFileSync | None = None

    def newest_good(self) -> SavedCheckpoint | None:
        """Return None."""

    def best(self) -> SavedCheckpoint | None:
        """Return None."""

    def finish(self) -> None:
        """Do nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""
