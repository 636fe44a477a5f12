"""`from_scratch=true`: the run starts again from step 0, and nothing of what it trained before is lost.

<run folder>/before-1/    checkpoints/  metrics.csv  tensorboard/ of what was trained before
"""

import itertools
import os
from pathlib import Path

from train_anywhere.files.atomic import move
from train_anywhere.files.marked import Place, make
from train_anywhere.files.removal import remove
from train_anywhere.runs.folder import RunDir

OF_TRAINING = ("checkpoints", "metrics.csv", "tensorboard", "steps")
"""What training writes into a run folder."""


def set_aside(run: RunDir) -> Path | None:
    """Move what training wrote into a folder of its own; returns that folder, or None if there was nothing."""
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
    """Undo `set_aside` after a refused submission."""
    if folder is None:
        return
    for name in OF_TRAINING:
        if (folder / name).exists():
            move(folder / name, run.path / name)
    remove(_place(folder))


def _place(folder: Path) -> Place:
    return Place(folder.parent, (folder.name,), f"{folder.name} of run {folder.parent.name}")
