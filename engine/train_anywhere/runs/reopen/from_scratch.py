"""`from_scratch=true`: the run starts again from step 0, and its earlier results are kept.

<run folder>/before-1/    checkpoints/  metrics.csv  tensorboard/  steps  of the earlier training
"""

import itertools
import os
from pathlib import Path

from train_anywhere.files.atomic import move
from train_anywhere.files.owned_folder import OwnedFolder, make_owned
from train_anywhere.files.removal import remove
from train_anywhere.runs.folder import RunDir

TRAINING_FILES = ("checkpoints", "metrics.csv", "tensorboard", "steps")
"""Files and folders that training writes into a run folder."""


def move_aside(run: RunDir) -> Path | None:
    """Move the results of training into a new folder before-N; return it, or None without results."""
    found = [name for name in TRAINING_FILES if (run.path / name).exists()]
    if not found:
        return None
    number = next(n for n in itertools.count(1) if not os.path.lexists(run.path / f"before-{n}"))
    folder = run.path / f"before-{number}"
    make_owned(_place(folder))
    for name in found:
        move(run.path / name, folder / name)
    return folder


def move_back(run: RunDir, folder: Path | None) -> None:
    """Undo `move_aside` after a refused submission."""
    if folder is None:
        return
    for name in TRAINING_FILES:
        if (folder / name).exists():
            move(folder / name, run.path / name)
    remove(_place(folder))


def _place(folder: Path) -> OwnedFolder:
    return OwnedFolder(folder.parent, (folder.name,), f"{folder.name} of run {folder.parent.name}")
