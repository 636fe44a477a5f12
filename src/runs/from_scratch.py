"""A run that can't go on where it stood: refused, or begun again with `from_scratch=true`; nothing of it is lost.

<run folder>/before-1/    checkpoints/  metrics.csv  tensorboard/ of what was trained before
"""

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

from src.checkpoints.manifest import damage_of
from src.errors import CheckpointError
from src.files.atomic import move
from src.files.marked import Place, make
from src.files.removal import remove
from src.runs.folder import RunDir

OF_TRAINING = ("checkpoints", "metrics.csv", "tensorboard", "steps")
"""What training writes into a run folder."""


def refuse_unreadable(run: RunDir) -> None:
    """A quick look ahead of a submission, by sizes alone; the rank that loads a checkpoint looks at its checksums.

    A run without any checkpoint, killed before its first, just starts.

    Raises:
        CheckpointError: where it has checkpoints and all are damaged, or had some and none is there.
    """
    if run.checkpoints.exists() and not os.access(run.checkpoints, os.R_OK | os.X_OK):
        raise CheckpointError(f"{run.checkpoints} can't be read: you may not look into that folder.")
    folders = sorted(p for p in run.checkpoints.glob("[0-9]*") if p.is_dir() and p.name.isdigit())
    damages = {p: damage_of(p, checksums=False) for p in folders}
    if folders and all(damages.values()):
        raise CheckpointError(none_can_be_read(run.path, [f"{p.name}: {d}" for p, d in damages.items()]))
    if not folders and _had_one(run):
        raise CheckpointError(
            f"{run.path} had a checkpoint, by its run.json, and none is in {run.checkpoints.name}/ any more: put them back. "
            f"resume={run.path} from_scratch=true starts it again from step 0."
        )


def _had_one(run: RunDir) -> bool:
    """Whether a part of the run ended with a checkpoint, or began from one."""
    info = run.info()
    return bool(info.get("checkpoint")) or any(part.get("from_step") for part in info.get("parts", []))


def none_can_be_read(run: Path, damages: Sequence[str]) -> str:
    """The sentence for a run whose checkpoints are all damaged."""
    count = f"{len(damages)} {'is' if len(damages) == 1 else 'are'} damaged"
    return (
        f"{run} has no checkpoint that can be read ({count}: {', '.join(damages)}); nothing was deleted. "
        f"resume={run} from_scratch=true starts it again from step 0 and keeps them aside."
    )


def set_aside(run: RunDir) -> Path | None:
    """Move what training wrote into a folder of its own; returns it, None where there was nothing."""
    there = [name for name in OF_TRAINING if (run.path / name).exists()]
    if not there:
        return None
    number = next(n for n in itertools.count(1) if not os.path.lexists(run.path / f"before-{n}"))
    folder = run.path / f"before-{number}"
    make(_place(folder))
    for name in there:
        move(run.path / name, folder / name)
    return folder


def put_back(run: RunDir, folder: Path | None) -> None:
    """Undo `set_aside`, where the submission was refused."""
    if folder is None:
        return
    for name in OF_TRAINING:
        if (folder / name).exists():
            move(folder / name, run.path / name)
    remove(_place(folder))


def _place(folder: Path) -> Place:
    return Place(folder.parent, (folder.name,), f"{folder.name} of run {folder.parent.name}")
