"""Choice of a checkpoint whose weights are read. Nothing is written or locked, so the run may be training at the same time."""

from collections.abc import Callable
from typing import TypeVar

from train_anywhere.checkpoints.disk.manifest import SavedCheckpoint, find_damage, folder_name, load_manifest
from train_anywhere.checkpoints.store import CheckpointStore
from train_anywhere.errors import CheckpointError
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.reopen.frozen import read_frozen

T = TypeVar("T")
MAX_TRIES = 3
"""Maximum number of tries, if a training run removes the checkpoint that is being read."""


def choose(run: RunDir, which: str | int, checksums: bool = True) -> SavedCheckpoint:
    """Return one checkpoint of the run.

    Args:
        run: the run folder.
        which: "best" by `checkpoint.monitor`, or the newest if it was never measured; "newest"; or a step.
        checksums: False compares only file sizes, which is fast.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    try:
        return _find(run, which, checksums)
    except OSError as error:
        raise CheckpointError(
            f"the checkpoints in {run.checkpoints} can't be read ({error.strerror or error})."
        ) from error


def _find(run: RunDir, which: str | int, checksums: bool) -> SavedCheckpoint:
    store = _store(run)
    if isinstance(which, int) or which.isdigit():
        return _find_step(run, store, int(which), checksums)
    if checksums:
        found = (store.best() if which == "best" else None) or store.newest_good()
    else:
        found = next((s for s in reversed(store.all()) if find_damage(s.path, checksums=False) is None), None)
    if found is None:
        raise CheckpointError(_none_message(run))
    return found


def read_chosen(run: RunDir, which: str | int, read: Callable[[SavedCheckpoint], T]) -> T:
    """Return the result of `read` for the chosen checkpoint. If the run has just removed that one, choose again.

    Raises:
        CheckpointError: as `choose` and `read`.
    """
    for _ in range(MAX_TRIES - 1):
        saved = choose(run, which)
        try:
            return read(saved)
        except (CheckpointError, OSError):
            if saved.path.exists():
                raise
    return read(choose(run, which))


def _store(run: RunDir) -> CheckpointStore:
    section = read_frozen(run).get("checkpoint")
    mode = section.get("mode") if isinstance(section, dict) else None
    return CheckpointStore(run.checkpoints, "max" if mode == "max" else "min", keep_last=1)


def _find_step(run: RunDir, store: CheckpointStore, step: int, checksums: bool) -> SavedCheckpoint:
    folder = run.checkpoints / folder_name(step)
    if not folder.is_dir():
        known = ", ".join(str(s.step) for s in store.all())
        raise CheckpointError(
            f"{run.path} has no checkpoint of step {step}; it has {known}." if known else _none_message(run)
        )
    if damage := find_damage(folder, checksums):
        raise CheckpointError(f"{folder} is damaged ({damage}); name another step, best or newest.")
    return load_manifest(folder)


def _none_message(run: RunDir) -> str:
    state = run.read_info().get("state")
    then = "; wait for its first one" if state in ("queued", "running") else ""
    return f"{run.path} has no checkpoint that can be read{then}."
