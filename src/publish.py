"""Checkpoints written behind the training's back: first to the node's own disk, then into the run folder.

The training thread copies its state into buffers that it keeps, and goes on. A worker thread writes them to
the node's disk, which frees them, and then copies the files into the run folder. It holds no copy of its own.

    python -m src.publish RUN      after a crash: publish what is complete on this node's disk
"""

import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from src.checkpoint_store import CheckpointStore, Saved
from src.errors import CheckpointError
from src.lock import RunLock
from src.rundir import RunDir, open_run
from src.staging import Stage, Write, make_stage, read_record, write_record

if TYPE_CHECKING:
    from src.schema import Checkpoint

LAST_RETRY = 300.0
"""Longest wait in seconds until what failed is tried again."""


@dataclass
class Job:
    """A state in the training's buffers.

    Attributes:
        write: writes its files into a folder; facts: the fields of `Saved`.
        released: the worker does not read the buffers (any more, or just now).
        local: the node's disk has not refused it yet.
    """

    write: Write
    facts: Mapping[str, Any]
    released: bool = False
    local: bool = True


def say(text: str) -> None:
    """Tell the person who reads the log."""
    print(text, file=sys.stderr, flush=True)


class Publisher:
    """Writes one run's checkpoints in the background; a context manager that ends with `close`.

    All methods are for the training thread. Trouble with disks does not end a run that can go on: it is told
    and tried again. Any other error of the worker is raised by the next `check`.

    Args:
        store: of the run folder.
        stage: on the node's disk; None: write straight into the run folder.
        tell: prints a line; called from the worker.

    Attributes:
        patience: seconds that `close` goes on trying when the run folder's disk takes nothing.
        first_retry: seconds until what failed is tried again, doubled each time.
        stall: seconds that the training thread waited for its newest checkpoint.
        newest: the newest checkpoint that was published.
    """

    patience, first_retry = 60.0, 1.0

    def __init__(
        self, store: CheckpointStore, stage: Stage | None, tell: Callable[[str], None] = say
    ) -> None:
        self.store, self.stage, self.tell = store, stage, tell
        self.stall = 0.0
        self.newest: Saved | None = None
        self._job: Job | None = None
        self._error: BaseException | None = None
        self._trouble: OSError | None = None  # why the newest state is not in the run folder
        self._failures = 0
        self._told: set[str] = set()
        self._began = 0.0
        self._deadline: float | None = None  # of the last attempts, once the run is over
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="publisher", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Costs nothing; call it at each step.

        Raises:
            CheckpointError: chained to the worker's error, if there was one.
        """
        if self._error:
            raise CheckpointError(f"a checkpoint could not be written: {self._error!r}") from self._error

    @property
    def busy(self) -> bool:
        """Whether the buffers are in use; a checkpoint that can be made a little later should be."""
        return self._job is not None and not self._job.released

    def wait_buffers(self) -> None:
        """Return when the buffers may be filled. What they held and no disk has taken so far is given up.

        Raises:
            CheckpointError: as `check`.
        """
        self._began = time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: not self.busy)
            self._job = None
        self.check()

    def save(self, write: Write, **facts: Any) -> None:
        """Hand over the buffers, filled after `wait_buffers`; returns at once.

        Args:
            write: writes the files of the checkpoint into a folder, from the buffers; called by the worker.
            facts: step, epoch, batch, metrics, value and framework, see `Saved`.
        """
        with self._changed:
            self._job = Job(write, facts)
            self._changed.notify_all()
        self.stall = time.monotonic() - self._began

    def close(self) -> None:
        """Wait until everything is in the run folder, and end the worker.

        Raises:
            CheckpointError: as `check`; or the newest state could not be published: it names the local copy.
        """
        with self._changed:
            self._deadline, self._failures = time.monotonic() + self.patience, 1
            self._changed.notify_all()
        self._thread.join()
        self.check()
        if self._trouble:
            raise CheckpointError(self._lost(self._trouble)) from self._trouble
        if self.stage:
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

    # --- the worker ---------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            self._attempt()
            while self._wait():
                self._attempt()
        except BaseException as error:
            with self._changed:
                self._error, self._job = error, None
                self._changed.notify_all()

    def _wait(self) -> bool:
        """For something to do, or for the time to try again; False when the run is over and all is done."""
        pause = min(self.first_retry * 2 ** (self._failures - 1), LAST_RETRY)
        with self._changed:
            if self._deadline is None:
                news = lambda: self.busy or self._deadline is not None  # noqa: E731
                return self._changed.wait_for(news, pause if self._trouble else None) or True
            if self._trouble and not self.busy:
                self._changed.wait(pause)
            return self.busy or bool(self._trouble and time.monotonic() < self._deadline)

    def _attempt(self) -> None:
        """Write and publish whatever there is."""
        try:
            self._write()
            self._publish()
            self._trouble, self._failures = None, 0
        except OSError as trouble:
            self._trouble, self._failures = trouble, self._failures + 1
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
                shutil.rmtree(temporary, ignore_errors=True)
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


def open_publisher(config: "Checkpoint", run: RunDir) -> Publisher:
    """The publisher of a run that begins or goes on; its store then has all that can still be had.

    Raises:
        CheckpointError: see `rescue`.
    """
    rescue(run)
    store = CheckpointStore(run.checkpoints, config.mode, config.keep_last, config.keep_every_n_epochs)
    stage = make_stage(run, config.local)
    if stage:
        with suppress(
            OSError
        ):  # without it, what is left after a crash waits for the run to resume on this node
            write_record(run, stage, store.rule)
    return Publisher(store, stage)


def rescue(run: RunDir) -> Saved | None:
    """Publish what an ended run of the folder left on this node's disk; returns the newest of it.

    Raises:
        CheckpointError: where the run folder's disk does not take it.
    """
    record = read_record(run)
    if not record or not record[0].complete():
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
    try:
        sys.exit(publish_what_is_left(open_run(sys.argv[1])))
    except CheckpointError as problem:
        sys.exit(f"error: {problem}")
