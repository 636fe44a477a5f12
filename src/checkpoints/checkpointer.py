"""Checkpoints written behind the training's back: first to the node's own disk, then into the run folder.

The training thread copies its state into buffers that it keeps, and goes on. A worker thread writes them to
the node's disk, which frees them, and then copies the files into the run folder. It holds no copy of its own.
TensorBoard's files take the same way (`src/checkpoints/event_files.py`).

    python -m src.checkpoints.checkpointer RUN      after a crash: publish what is complete on this node's disk
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from src.checkpoints.event_files import Mirror
from src.checkpoints.staging import Stage, Write, make_stage, read_record, write_record
from src.checkpoints.store import CheckpointStore, Saved
from src.checkpoints.writer import Job, Worker, say
from src.errors import CheckpointError
from src.runs.folder import RunDir, open_run
from src.runs.lock import RunLock

if TYPE_CHECKING:
    from src.config.schema import Checkpoint


class Publisher:
    """Writes one run's checkpoints in the background; a context manager that ends with `close`.

    All methods are for the training thread. Trouble with disks does not end a run that can go on: it is told
    and tried again. Any other error of the worker is raised by the next `check`.

    Args:
        store: of the run folder.
        stage: on the node's disk; None: write straight into the run folder.
        tell: prints a line; called from the worker.

    Attributes:
        mirror: brings TensorBoard's files into the run folder, beside the checkpoints.
    """

    def __init__(
        self, store: CheckpointStore, stage: Stage | None, tell: Callable[[str], None] = say
    ) -> None:
        self.store, self.stage, self.tell = store, stage, tell
        self.mirror = Mirror(stage, store.folder.with_name("tensorboard"), tell)
        self.worker = Worker(store, stage, tell)

    @property
    def newest(self) -> Saved | None:
        """The newest checkpoint that was published."""
        return self.worker.newest

    def check(self) -> None:
        """Costs nothing; call it at each step.

        Raises:
            CheckpointError: chained to the worker's error, if there was one.
        """
        if self.worker.error:
            raise CheckpointError(
                f"a checkpoint could not be written: {self.worker.error!r}"
            ) from self.worker.error

    def wait_buffers(self) -> None:
        """Return when the buffers may be filled. What they held and no disk has taken so far is given up.

        Raises:
            CheckpointError: as `check`.
        """
        self.worker.take_back()
        self.check()

    def save(self, write: Write, **facts: Any) -> None:
        """Hand over the buffers, filled after `wait_buffers`; returns at once.

        Args:
            write: writes the files of the checkpoint into a folder, from the buffers; called by the worker.
            facts: step, epoch, batch, metrics, value and framework, see `Saved`.
        """
        self.worker.hand_over(Job(write, facts))
        self.mirror.soon()

    def finish(self) -> None:
        """Wait until all checkpoints are in the run folder, and end the worker.

        Raises:
            CheckpointError: as `check`; or the newest state could not be published: it names the local copy.
        """
        self.worker.finish()
        self.check()
        if self.worker.trouble:
            raise CheckpointError(self._lost(self.worker.trouble)) from self.worker.trouble

    def close(self) -> None:
        """Wait until everything is in the run folder, and leave nothing on the node's disk.

        Raises:
            CheckpointError: as `finish`.
        """
        try:
            self.finish()
        finally:
            mirrored = self.mirror.close()
        if self.stage and mirrored:
            self.stage.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Publishes what was handed over, also after an error; only a second Ctrl-C does not wait for it."""
        if isinstance(error, KeyboardInterrupt):
            return
        try:
            self.close()
        except CheckpointError as problem:
            if error is None:
                raise
            self.tell(str(problem))

    def _lost(self, trouble: OSError) -> str:
        left = self.stage.complete() if self.stage else []
        where = f"it is in {left[-1].path} on this node" if left else "it is lost"
        remedy = f"make room there, then resume{' on this node' if left else ''}"
        return (
            f"the newest checkpoint can't be written to {self.store.folder} ({trouble}); {where}: {remedy}."
        )


def open_publisher(config: "Checkpoint", run: RunDir) -> Publisher:
    """The publisher of a run that begins or goes on; its store then has all that can still be had.

    Raises:
        CheckpointError: see `rescue`.
    """
    rescue(run)
    store = CheckpointStore(run.checkpoints, config.mode, config.keep_last, config.keep_every_n_epochs)
    stage = make_stage(run, config.local)
    if stage and (problem := stage.problem()):
        say(f"{stage.folder} takes no checkpoints ({problem}); doing without it.")
        stage = None
    if stage:
        with suppress(OSError):  # without it, what a crash leaves waits until the run resumes on this node
            write_record(run, stage, store.rule)
    return Publisher(store, stage)


def rescue(run: RunDir) -> Saved | None:
    """Publish what an ended run of the folder left on this node's disk; returns the newest of it.

    Raises:
        CheckpointError: where the run folder's disk does not take it.
    """
    record = read_record(run)
    if not record or not record[0].owned():
        return None
    stage, rule = record
    store = CheckpointStore(run.checkpoints, rule.mode, rule.keep_last, rule.keep_every_n_epochs)
    publisher = Publisher(store, stage)
    publisher.close()
    return publisher.newest


def publish_what_is_left(run: RunDir) -> int:
    """`rescue`, for a process that outlives the ranks; returns an exit code. There may be nothing to do."""
    try:
        with RunLock(run):
            saved = rescue(run)
    except CheckpointError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if saved:
        say(f"published the checkpoint of step {saved.step} that the ended ranks had left on this node.")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m src.checkpoints.checkpointer RUN")
    try:
        sys.exit(publish_what_is_left(open_run(sys.argv[1])))
    except CheckpointError as problem:
        sys.exit(f"error: {problem}")
