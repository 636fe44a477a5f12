"""Open a run's checkpointer; first recover the checkpoints that an earlier process left on this node's disk.

PYTHONPATH=engine python -m train_anywhere.checkpoints.recovery RUN      after a crash: publish what is complete on this node's disk
"""

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from train_anywhere.checkpoints.checkpointer import AsyncCheckpointer
from train_anywhere.checkpoints.disk.event_files import EventFileSync
from train_anywhere.checkpoints.disk.staging import open_staging, read_record, write_record
from train_anywhere.checkpoints.disk.writes import say
from train_anywhere.checkpoints.info import SavedCheckpoint
from train_anywhere.checkpoints.store import CheckpointStore
from train_anywhere.errors import CheckpointError
from train_anywhere.runs.folder import RunDir, open_run
from train_anywhere.runs.lock import RunLock

if TYPE_CHECKING:
    from train_anywhere.config.schema import Checkpoint


def open_checkpointer(config: "Checkpoint", run: RunDir, in_parts: bool = False) -> AsyncCheckpointer:
    """The checkpointer of a new or resumed run, after `recover`.

    Args:
        in_parts: the ranks bring their parts of each checkpoint to the run folder themselves; only event files are staged here.

    Raises:
        CheckpointError: see `recover`.
    """
    recover(run)
    store = CheckpointStore(
        run.checkpoints, config.mode or "min", config.keep_last, config.keep_every_n_epochs
    )
    staging = open_staging(run, config.local)
    if staging and (problem := staging.problem()):
        say(f"{staging.folder} takes no checkpoints ({problem}); continuing without it.")
        staging = None
    if staging:
        with suppress(OSError):  # without it, what a crash leaves waits until the run resumes on this node
            write_record(run, staging, store.rule)
    return AsyncCheckpointer(store, None if in_parts else staging, EventFileSync(staging, run.tensorboard))


def recover(run: RunDir) -> SavedCheckpoint | None:
    """Publish what an ended process of the run left on this node's disk; returns its newest checkpoint.

    Raises:
        CheckpointError: the run folder's disk does not take it.
    """
    record = read_record(run)
    if not record or not record[0].owned():
        return None
    staging, rule = record
    store = CheckpointStore(run.checkpoints, rule.mode, rule.keep_last, rule.keep_every_n_epochs)
    checkpointer = AsyncCheckpointer(store, staging, EventFileSync(staging, run.tensorboard))
    checkpointer.close()
    return checkpointer.newest


def recover_leftovers(run: RunDir) -> int:
    """`recover`, for a process that outlives the ranks; returns an exit code. There may be nothing to do."""
    try:
        with RunLock(run):
            saved = recover(run)
            if run.info():
                run.update()  # run.json takes over what the batch script recorded in the file `state`
    except (CheckpointError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if saved:
        say(f"published the checkpoint of step {saved.step} that the ended ranks had left on this node.")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: PYTHONPATH=engine python -m train_anywhere.checkpoints.recovery RUN")
    try:
        sys.exit(recover_leftovers(open_run(sys.argv[1])))
    except CheckpointError as problem:
        sys.exit(f"error: {problem}")
