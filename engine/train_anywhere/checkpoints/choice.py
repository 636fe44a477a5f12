"""Choose a checkpoint of a run to read its weights. Nothing is written or locked: the run may be training meanwhile."""

from collections.abc import Callable
from typing import TypeVar

from train_anywhere.checkpoints.disk.manifest import damage_of, load_manifest, name_of
from train_anywhere.checkpoints.info import SavedCheckpoint
from train_anywhere.checkpoints.store import CheckpointStore
from train_anywhere.errors import CheckpointError
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.reopen.frozen import read_frozen

T = TypeVar("T")
TRIES = 3
"""How often another checkpoint is chosen where the run has removed the one that was being read."""


def choose(run: RunDir, which: str | int, checksums: bool = True) -> SavedCheckpoint:
    """One checkpoint of the run.

    Args:
        which: "best" by `checkpoint.monitor`, or the newest where none was measured; "newest"; or a step.
        checksums: False compares sizes alone, which is quick.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    try:
        return _chosen(run, which, checksums)
    except OSError as error:
        raise CheckpointError(
            f"the checkpoints in {run.checkpoints} can't be read ({error.strerror or error})."
        ) from error


def _chosen(run: RunDir, which: str | int, checksums: bool) -> SavedCheckpoint:
    store = _store(run)
    if isinstance(which, int) or which.isdigit():
        return _of_step(run, store, int(which), checksums)
    if checksums:
        found = (store.best() if which == "best" else None) or store.newest_good()
    else:
        found = next((s for s in reversed(store.all()) if damage_of(s.path, checksums=False) is None), None)
    if found is None:
        raise CheckpointError(_none(run))
    return found


def read_chosen(run: RunDir, which: str | int, read: Callable[[SavedCheckpoint], T]) -> T:
    """What `read` makes of the chosen checkpoint; of another one where a running training has just removed that.

    Raises:
        CheckpointError: as `choose` and `read`.
    """
    for _ in range(TRIES - 1):
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


def _of_step(run: RunDir, store: CheckpointStore, step: int, checksums: bool) -> SavedCheckpoint:
    folder = run.checkpoints / name_of(step)
    if not folder.is_dir():
        known = ", ".join(str(s.step) for s in store.all())
        raise CheckpointError(
            f"{run.path} has no checkpoint of step {step}; it has {known}." if known else _none(run)
        )
    if damage := damage_of(folder, checksums):
        raise CheckpointError(f"{folder} is damaged ({damage}); name another step, best or newest.")
    return load_manifest(folder)


def _none(run: RunDir) -> str:
    state = run.info().get("state")
    then = "; wait for its first one" if state in ("queued", "running") else ""
    return f"{run.path} has no checkpoint that can be read{then}."
