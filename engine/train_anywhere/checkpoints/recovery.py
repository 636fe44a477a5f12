"""Open a run's checkpointer, after recovering checkpoints left on this node's disk.

After a crash, this command publishes the complete checkpoints on this node's disk, or copies the files of a program:

    PYTHONPATH=engine python -m train_anywhere.checkpoints.recovery RUN
"""

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from train_anywhere.checkpoints.checkpointer import AsyncCheckpointer
from train_anywhere.checkpoints.disk.manifest import SavedCheckpoint
from train_anywhere.checkpoints.disk.staging import Staging, read_record, write_record
from train_anywhere.checkpoints.store import CheckpointStore
from train_anywhere.config.load import load
from train_anywhere.errors import CheckpointError, ProjectError
from train_anywhere.files.atomic import make_folder
from train_anywhere.files.copy_files import copy_leftovers, print_line
from train_anywhere.files.node_disk import find_run_folder, list_rank_folders
from train_anywhere.runs.folder import RunDir, open_run
from train_anywhere.runs.lock import RunLock
from train_anywhere.runs.reopen.frozen import read_frozen

if TYPE_CHECKING:
    from train_anywhere.config.schema import Checkpoint


def open_checkpointer(config: "Checkpoint", run: RunDir, sharded: bool = False) -> AsyncCheckpointer:
    """Call `recover`, and return the checkpointer of a new or resumed run.

    With `sharded` the ranks write their shards to the node's disk and to the run folder themselves.

    Raises:
        CheckpointError: see `recover`.
    """
    recover(run)
    store = CheckpointStore(
        run.checkpoints, config.mode or "min", config.keep_last, config.keep_every_n_epochs
    )
    local = None if sharded else find_run_folder(run.path, config.local)
    staging = Staging(local) if local else None
    if staging and (problem := staging.find_problem()):
        print_line(f"{staging.folder} takes no checkpoints ({problem}); continuing without it.")
        staging = None
    if staging:
        # without the record, checkpoints left by a crash are published when the run resumes here
        with suppress(OSError):
            write_record(run, staging, store.rule)
    return AsyncCheckpointer(store, staging)


def recover(run: RunDir) -> SavedCheckpoint | None:
    """Publish checkpoints left on this node; return the newest.

    Raises:
        CheckpointError: the run folder can't be written.
    """
    record = read_record(run)
    if not record or not record[0].is_owned():
        return None
    staging, rule = record
    store = CheckpointStore(run.checkpoints, rule.mode, rule.keep_last, rule.keep_every_n_epochs)
    checkpointer = AsyncCheckpointer(store, staging)
    checkpointer.close()
    return checkpointer.newest


def recover_leftovers(run: RunDir) -> int:
    """Call `recover` after the ranks have ended, and return an exit code."""
    try:
        with RunLock(run):
            saved = recover(run)
            stays = _recover_program(run)
    except (CheckpointError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if saved:
        print_line(f"published the checkpoint of step {saved.step} that the ranks had left on this node.")
    for why in stays:
        print(f"error: {why}.", file=sys.stderr)
    return 1 if stays else 0


def _recover_program(run: RunDir) -> list[str]:
    """Copy files of killed ranks of a program. Return why some stay. Raises OSError."""
    with suppress(ProjectError):  # without a readable configuration nothing names the disk
        tree = read_frozen(run)
        is_program = tree.get("program", {}).get("command")
        local = find_run_folder(run.path, load(tree).checkpoint.local) if is_program else None
        if places := list_rank_folders(local) if local else []:
            make_folder(run.checkpoints)
            return [why for place in places if (why := copy_leftovers(place, run.checkpoints))]
    return []


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: PYTHONPATH=engine python -m train_anywhere.checkpoints.recovery RUN")
    try:
        sys.exit(recover_leftovers(open_run(sys.argv[1])))
    except CheckpointError as problem:
        sys.exit(f"error: {problem}")
