"""Paths of new files of an evaluation, and the file of its metrics."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from train_anywhere.checkpoints.disk.manifest import SavedCheckpoint
from train_anywhere.config.checks.writable import write_problem
from train_anywhere.errors import CheckpointError
from train_anywhere.files.atomic import read_text, write_atomic
from train_anywhere.files.ordinary import make_folder
from train_anywhere.files.plain_json import dumps
from train_anywhere.files.typed_paths import shell_folder
from train_anywhere.runs.folder import RunDir

EVALUATIONS, EXPORTS = "evaluations", "exports"
"""Folders in the run folder."""

ENDINGS = (".npz", ".csv")


def write_metrics(run: RunDir, saved: SavedCheckpoint, split: str, metrics: Mapping[str, float]) -> Path:
    """Write RUN/evaluations/<split>-<step>.json and return its path. If that has other metrics, the name ends in -2, -3, ...

    Raises:
        CheckpointError: the run folder can't be written.
    """
    content = {
        "split": split,
        "step": saved.step,
        "epoch": saved.epoch,
        "framework": saved.framework,
        "metrics": dict(metrics),
    }
    text, number = dumps(content), 1
    folder = run.path / EVALUATIONS
    try:
        make_folder(folder)
        while True:
            path = folder / f"{split}-{saved.path.name}{'' if number == 1 else f'-{number}'}.json"
            if not path.exists():
                write_atomic(path, text)
            if _has_content(path, content):
                return path
            number += 1
    except OSError as error:
        raise CheckpointError(f"{folder} can't be written ({error.strerror or error}).") from error


def _has_content(path: Path, content: Mapping[str, Any]) -> bool:
    try:
        return bool(json.loads(read_text(path)) == json.loads(dumps(content)))
    except (OSError, ValueError, RecursionError):
        return False


def check_new_file(path: Path) -> Path:
    """Return the absolute path of a file to write.

    Raises:
        CheckpointError: the file exists, its folder does not, or it can't be written.
    """
    path = shell_folder() / os.path.expanduser(path)
    if os.path.lexists(path):
        raise CheckpointError(f"{path} exists and is not overwritten; name another file.")
    if not os.path.isdir(path.parent):
        raise CheckpointError(f"{path.parent} is not a folder; make it, or name another file.")
    try:
        why = write_problem(path)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
    if why:
        raise CheckpointError(f"{path} can't be written ({why}); name another file.")
    return path


def prediction_file(name: str) -> Path:
    """Return the path of a new file for predictions. Raises CheckpointError, also for a suffix that is not in `ENDINGS`."""
    if Path(name).suffix not in ENDINGS:
        raise CheckpointError(f"--predict {name}: the name must end in {' or '.join(ENDINGS)}.")
    return check_new_file(Path(name))


def export_file(run: RunDir, saved: SavedCheckpoint, file: Path | None, suffix: str) -> Path:
    """Return `file`, or RUN/exports/model-<step><suffix>. Raises CheckpointError if it exists."""
    if file:
        return check_new_file(file)
    folder = run.path / EXPORTS
    try:
        make_folder(folder)
    except OSError as error:
        raise CheckpointError(
            f"{folder} can't be made ({error.strerror}); name a file with --to FILE."
        ) from error
    return check_new_file(folder / f"model-{saved.path.name}{suffix}")
