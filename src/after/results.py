"""Files of what was measured or predicted, each under a name that is free."""

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from src.checkpoints.info import SavedCheckpoint
from src.errors import CheckpointError
from src.files.atomic import read_text, write_atomic
from src.files.plain_json import dumps
from src.runs.folder import RunDir

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
        folder.mkdir(exist_ok=True)
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
    path = path.expanduser().absolute()
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


def export_file(run: RunDir, saved: SavedCheckpoint, named: str | None, ending: str) -> Path:
    """The file named, or RUN/exports/model-<step><ending>. Raises CheckpointError: it is there already."""
    if named:
        return free(Path(named))
    folder = run.path / EXPORTS
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"{folder} can't be made ({error.strerror}); name a file with --to FILE."
        ) from error
    return free(folder / f"model-{saved.path.name}{ending}")


def write_predictions(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """One row for each row of the split, in its order.

    Args:
        path: .npz holds the arrays [n, ...] by name, .csv a column for each number of a row.

    Raises:
        CheckpointError: the disk refuses.
    """
    try:
        if path.suffix == ".npz":
            with open(path, "xb") as file:
                np.savez(file, **arrays)
        else:
            write_atomic(path, _table(arrays))
    except OSError as error:
        raise CheckpointError(f"{path} can't be written ({error.strerror or error}).") from error


def _table(arrays: Mapping[str, np.ndarray]) -> str:
    flat = {name: a.reshape(len(a), -1) for name, a in arrays.items()}
    header = ["row", *(f"{n}_{k}" for n, a in flat.items() for k in range(a.shape[1]))]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    for number, rows in enumerate(zip(*flat.values(), strict=True)):
        writer.writerow([number, *(repr(v) for row in rows for v in row.tolist())])
    return text.getvalue()


def named_arrays(tree: Any, name: str = "predictions") -> dict[str, np.ndarray]:
    """Arrays of a tree of tuples and dicts by name: a single one is "predictions", others go by key or number."""
    if isinstance(tree, Mapping):
        return {k: v for key, value in tree.items() for k, v in named_arrays(value, str(key)).items()}
    if isinstance(tree, list | tuple):
        return {k: v for n, value in enumerate(tree) for k, v in named_arrays(value, f"{name}_{n}").items()}
    return {name: np.asarray(tree)}
