"""Whether a run has a checkpoint to resume from; refuses a run that had some and can read none of them."""

import os
from collections.abc import Sequence
from pathlib import Path

from train_anywhere.checkpoints.disk.manifest import damage_of
from train_anywhere.errors import CheckpointError
from train_anywhere.runs.folder import ATTEMPTS, RunDir


def refuse_unreadable(run: RunDir) -> None:
    """A quick check before a submission, by file sizes alone; the rank that loads a checkpoint verifies its checksums.

    A run that was killed before its first checkpoint just starts.

    Raises:
        CheckpointError: all checkpoints of the run are damaged, or it had some and none is there.
    """
    if run.checkpoints.exists() and not os.access(run.checkpoints, os.R_OK | os.X_OK):
        raise CheckpointError(f"{run.checkpoints} can't be read: you lack the permission to list it.")
    folders = sorted(p for p in run.checkpoints.glob("[0-9]*") if p.is_dir() and p.name.isdigit())
    damages = {p: damage_of(p, checksums=False) for p in folders}
    if folders and all(damages.values()):
        raise CheckpointError(none_can_be_read(run.path, [f"{p.name}: {d}" for p, d in damages.items()]))
    if not folders and _had_one(run):
        raise CheckpointError(
            f"{run.path} had a checkpoint, according to its run.json, but {run.checkpoints.name}/ has none: put it back, or "
            f"use resume={run.path} from_scratch=true to start again from step 0."
        )


def _had_one(run: RunDir) -> bool:
    """Whether an attempt of the run ended with a checkpoint, or started from one."""
    info = run.info()
    return bool(info.get("checkpoint")) or any(attempt.get("from_step") for attempt in info.get(ATTEMPTS, []))


def none_can_be_read(run: Path, damages: Sequence[str]) -> str:
    """The sentence for a run whose checkpoints are all damaged."""
    count = f"{len(damages)} {'is' if len(damages) == 1 else 'are'} damaged"
    return (
        f"{run} has no checkpoint that can be read ({count}: {', '.join(damages)}); nothing was deleted. "
        f"resume={run} from_scratch=true starts it again from step 0 and keeps them aside."
    )
