"""Open a run's checkpointer, after recovering checkpoints left on this node's disk.

After a crash, this command publishes the complete checkpoints on this node's disk, or copies the files of a program:

    PYTHONPATH=engine python -m train_anywhere.checkpoints.recovery RUN
"""

import sys
from pathlib import Path

from train_anywhere.checkpoints.checkpointer import AsyncCheckpointer
from train_anywhere.checkpoints.disk.manifest import SavedCheckpoint
from train_anywhere.checkpoints.store import CheckpointStore, Retention, Staging
from train_anywhere.config.keys import defaults
from train_anywhere.config.load import fill_variables
from train_anywhere.config.schema import Checkpoint
from train_anywhere.config.strict import build
from train_anywhere.errors import CheckpointError
from train_anywhere.files.atomic import make_folder
from train_anywhere.files.copy_files import copy_leftovers, print_line
from train_anywhere.files.node_disk import find_run_folder, list_rank_folders
from train_anywhere.runs.folder import RunDir, open_run
from train_anywhere.runs.lock import RunLock
from train_anywhere.runs.reopen.frozen import read_frozen


def open_checkpointer(config: Checkpoint, run: RunDir, sharded: bool = False) -> AsyncCheckpointer:
    """Call `recover`, and return the checkpointer of a new or resumed run.

    With `sharded` the ranks write their shards to the node's disk and to the run folder themselves. Raises CheckpointError as `recover`.
    """
    recover(config, run)
    return _open(config, run, None if sharded else find_run_folder(run.path, config.local))


def _open(config: Checkpoint, run: RunDir, local: Path | None) -> AsyncCheckpointer:
    rule = Retention(config.mode or "min", config.keep_last, config.keep_every_n_epochs)
    return AsyncCheckpointer(CheckpointStore(run.checkpoints, rule), Staging(local) if local else None)


def recover(config: Checkpoint, run: RunDir) -> SavedCheckpoint | None:
    """Publish checkpoints left on this node; return the newest. Raises CheckpointError if the run folder can't be written."""
    local = find_run_folder(run.path, config.local)
    if local is None or not Staging(local).is_owned():
        return None
    checkpointer = _open(config, run, local)
    checkpointer.close()
    return checkpointer.newest


def recover_leftovers(run: RunDir) -> int:
    """Call `recover` after the ranks have ended, or copy the files of a program, and return an exit code."""
    problems: list[str] = []
    try:
        tree = read_frozen(run)
    except CheckpointError:  # nothing else names the disk, and the ranks have reported it
        return 0
    section, program = (tree[k] if isinstance(tree.get(k), dict) else {} for k in ("checkpoint", "program"))
    known = fill_variables(section, problems)
    if (config := build(Checkpoint, defaults(Checkpoint) | known, problems)) is None or problems:
        return 0
    stays: list[str] = []
    try:
        with RunLock(run):
            saved, local = recover(config, run), find_run_folder(run.path, config.local)
            for place in list_rank_folders(local) if local and program.get("command") else ():
                make_folder(run.checkpoints)
                stays.append(copy_leftovers(place, run.checkpoints))
    except (CheckpointError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if saved:
        print_line(f"published the checkpoint of step {saved.step} that the ranks had left on this node.")
    for why in filter(None, stays):
        print(f"error: {why}.", file=sys.stderr)
    return 1 if any(stays) else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: PYTHONPATH=engine python -m train_anywhere.checkpoints.recovery RUN")
    try:
        sys.exit(recover_leftovers(open_run(sys.argv[1])))
    except CheckpointError as problem:
        sys.exit(f"error: {problem}")
