"""Check that a run has a checkpoint to resume from, if it ever had one."""

import os
from collections.abc import Sequence
from pathlib import Path

from train_anywhere.checkpoints.disk.manifest import find_damage
from train_anywhere.errors import CheckpointError
from train_anywhere.runs.folder import ATTEMPTS, RunDir
from train_anywhere.runs.summary import is_program


def refuse_unreadable(run: RunDir) -> None:
    """Check the run's checkpoints before a submission, by file sizes only; the rank that loads one verifies its checksums.

    A run that was killed before its first checkpoint passes and starts at step 0, and so does a program.

    Raises:
        CheckpointError: all checkpoints of the run are damaged, or it had some and none is there.
    """
    if is_program(run):  # its files are its own
        return
    if run.checkpoints.exists() and not os.access(run.checkpoints, os.R_OK | os.X_OK):
        raise CheckpointError(f"{run.checkpoints} can't be read: you lack the permission to list it.")
    folders = sorted(p for p in run.checkpoints.glob("[0-9]*") if p.is_dir() and p.name.isdigit())
    damages = {p: find_damage(p, checksums=False) for p in folders}
    if folders and all(damages.values()):
        raise CheckpointError(unreadable_message(run.path, [f"{p.name}: {d}" for p, d in damages.items()]))
    if not folders and _had_checkpoint(run):
        raise CheckpointError(
            f"{run.path} had a checkpoint, according to its run.json, but {run.checkpoints.name}/ has none: put it back, or "
            f"use resume={run.path} from_scratch=true to start again from step 0."
        )


def _had_checkpoint(run: RunDir) -> bool:
    """Return whether an attempt of the run wrote a checkpoint or started from one."""
    info = run.read_info()
    return bool(info.get("checkpoint")) or any(attempt.get("from_step") for attempt in info.get(ATTEMPTS, []))


def unreadable_message(run: Path, damages: Sequence[str]) -> str:
    """Return the message for a run whose checkpoints are all damaged."""
    count = f"{len(damages)} {'is' if len(damages) == 1 else 'are'} damaged"
    return (
        f"{run} has no checkpoint that can be read ({count}: {', '.join(damages)}); nothing was deleted. "
        f"resume={run} from_scratch=true starts it again from step 0 and keeps them aside."
    )
