"""Names of the files that come after training, each of them free, and the file of the metrics."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from train_anywhere.checkpoints.info import SavedCheckpoint
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
    """RUN/evaluations/<split>-<step>.json. Another result of the same split and step stays: then the name ends in -2, -3, ...

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
            if _same(path, content):
                return path
            number += 1
    except OSError as error:
        raise CheckpointError(f"{folder} can't be written ({error.strerror or error}).") from error


def _same(path: Path, content: Mapping[str, Any]) -> bool:
    try:
        return bool(json.loads(read_text(path)) == json.loads(dumps(content)))
    except (OSError, ValueError, RecursionError):
        return False


def free(path: Path) -> Path:
    """The absolute path of a file that is about to be written.

    Raises:
        CheckpointError: something has that name, or its folder is not there.
    """
    path = shell_folder() / path.expanduser()
    if path.exists() or path.is_symlink():
        raise CheckpointError(f"{path} is there already, and is not overwritten; name another file.")
    if not path.parent.is_dir():
        raise CheckpointError(f"{path.parent} is no folder; make it, or name another file.")
    return path


def prediction_file(named: str) -> Path:
    """A free file for predictions. Raises CheckpointError: also for another ending."""
    if Path(named).suffix not in ENDINGS:
        raise CheckpointError(f"--predict {named}: the name must end in {' or '.join(ENDINGS)}.")
    return free(Path(named))


def export_file(run: RunDir, saved: SavedCheckpoint, named: Path | None, ending: str) -> Path:
    """The file named, or RUN/exports/model-<step><ending>. Raises CheckpointError: it is there already."""
    if named:
        return free(named)
    folder = run.path / EXPORTS
    try:
        make_folder(folder)
    except OSError as error:
        raise CheckpointError(
            f"{folder} can't be made ({error.strerror}); name a file with --to FILE."
        ) from error
    return free(folder / f"model-{saved.path.name}{ending}")
