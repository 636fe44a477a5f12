"""Asynchronous checkpointing: the node's own disk first, then the run folder.

The training thread copies its state into buffers that are kept from one checkpoint to the next, and continues. A worker
thread writes the buffers to the node's disk, which frees them, and then copies the files into the run folder. It holds
no copy of its own. TensorBoard's files travel beside the checkpoints, see `checkpoints/disk/event_files.py`.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from train_anywhere.checkpoints.disk.event_files import EventFileSync
from train_anywhere.checkpoints.disk.staging import Staging, Write
from train_anywhere.checkpoints.disk.writes import say
from train_anywhere.checkpoints.info import CheckpointInfo, SavedCheckpoint
from train_anywhere.checkpoints.store import CheckpointStore
from train_anywhere.checkpoints.writer import Worker, WriteRequest
from train_anywhere.errors import CheckpointError


class AsyncCheckpointer:
    """Writes one run's checkpoints in the background; a context manager that ends with `close`.

    All methods are for the training thread. A disk error does not stop training: it is reported once and retried. Any
    other error of the worker is raised by the next `check`.

    Args:
        store: of the run folder.
        staging: on the node's disk; None: write straight into the run folder.
        events: syncs TensorBoard's files from a staging folder, the same if there are both; closed with the checkpointer,
            which then removes that folder.
        tell: prints a line; called from the worker.
    """

    def __init__(
        self,
        store: CheckpointStore,
        staging: Staging | None,
        events: EventFileSync,
        tell: Callable[[str], None] = say,
    ) -> None:
        self.store, self.staging, self.events, self.tell = store, staging, events, tell
        self.worker = Worker(store, staging, tell)

    @property
    def newest(self) -> SavedCheckpoint | None:
        """The newest checkpoint that is in the run folder."""
        return self.worker.newest

    def newest_good(self, until: int | None) -> SavedCheckpoint | None:
        """Return the newest checkpoint that can be read, at most of step `until`."""
        return self.store.newest_good(until)

    def best(self) -> SavedCheckpoint | None:
        """Return the best checkpoint."""
        return self.store.best()

    def check(self) -> None:
        """Costs nothing; call it at each step.

        Raises:
            CheckpointError: chained to the worker's error, if there was one.
        """
        if self.worker.error:
            raise CheckpointError(
                f"a checkpoint could not be written: {self.worker.error!r}"
            ) from self.worker.error

    def wait(self) -> None:
        """Return when the buffers may be filled. A state in them that no disk has accepted yet is dropped.

        Raises:
            CheckpointError: as `check`.
        """
        self.worker.acquire()
        self.check()

    def save(self, write: Write, info: CheckpointInfo) -> None:
        """Submit the buffers, filled after `wait`; returns at once.

        Args:
            write: writes the files of the checkpoint into a folder, from the buffers; called by the worker.
            info: where the training stands.
        """
        self.worker.submit(WriteRequest(write, info))
        self.events.sync_soon()

    def finish(self) -> None:
        """Wait until all checkpoints are in the run folder, and end the worker; event files are still synced.

        Raises:
            CheckpointError: as `check`; or the newest state could not be published: it names the local copy.
        """
        self.worker.finish()
        self.check()
        if self.worker.trouble:
            raise CheckpointError(self._unpublished(self.worker.trouble)) from self.worker.trouble

    def write_again(self, write: Write, info: CheckpointInfo) -> SavedCheckpoint:
        """Write a checkpoint here and now, after `finish`, in the place of one of the same step. Raises OSError."""
        write(temporary := self.store.begin(info.step))
        self.worker.newest = saved = self.store.commit(temporary, info)
        return saved

    def close(self) -> None:
        """Wait until everything is in the run folder, and leave nothing on the node's disk.

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
        """Publishes what was submitted, also after an error; only a second Ctrl-C does not wait for it."""
        if isinstance(error, KeyboardInterrupt):
            return
        try:
            self.close()
        except CheckpointError as problem:
            if error is None:
                raise
            if str(problem) != str(error):  # which is printed when the process ends
                self.tell(str(problem))

    def _unpublished(self, trouble: OSError) -> str:
        left = self.staging.complete() if self.staging else []
        where = f"it is in {left[-1].path} on this node" if left else "it is lost"
        remedy = f"make room there, then resume{' on this node' if left else ''}"
        why = trouble.strerror or trouble
        return f"the newest checkpoint can't be written to {self.store.folder} ({why}); {where}: {remedy}."


class NoCheckpointer:
    """The checkpointer of a process that writes no checkpoints: one rank of several, or a `fast_dev_run`."""

    newest: SavedCheckpoint | None = None
    events: EventFileSync | None = None

    def newest_good(self, until: int | None) -> SavedCheckpoint | None:
        """Return None."""

    def best(self) -> SavedCheckpoint | None:
        """Return None."""

    def finish(self) -> None:
        """Do nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""
