"""Files of an evaluation: their paths, the metrics, and the predictions."""

import csv
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from train_anywhere.checkpoints.disk.manifest import SavedCheckpoint
from train_anywhere.config.paths import write_problem
from train_anywhere.errors import CheckpointError
from train_anywhere.files.atomic import dumps, make_folder, move, read_text, write_atomic
from train_anywhere.files.root import shell_folder
from train_anywhere.runs.folder import RunDir

if TYPE_CHECKING:
    import numpy as np

EVALUATIONS, EXPORTS = "evaluations", "exports"
"""Folders in the run folder."""

ENDINGS = (".npz", ".csv")


def write_metrics(run: RunDir, saved: SavedCheckpoint, split: str, metrics: Mapping[str, float]) -> Path:
    """Write RUN/evaluations/<split>-<step>[-N].json, return its path. Raises CheckpointError if it can't be written."""
    content = {
        "split": split,
        "step": saved.step,
        "epoch": saved.epoch,
        "framework": saved.framework,
        "metrics": dict(metrics),
    }
    folder = run.path / EVALUATIONS
    try:
        make_folder(folder)
        for number in count(1):
            path = folder / f"{split}-{saved.path.name}{'' if number == 1 else f'-{number}'}.json"
            if not path.exists():
                write_atomic(path, dumps(content))
            with suppress(OSError, ValueError, RecursionError):
                if json.loads(read_text(path)) == json.loads(dumps(content)):
                    break
    except OSError as error:
        raise CheckpointError(f"{folder} can't be written ({error.strerror or error}).") from error
    return path


def check_new_file(path: Path) -> Path:
    """Return the absolute path of a file that can be written.

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


@contextmanager
def draft_export(path: Path) -> Iterator[Path]:
    """Yield a path in a new folder next to `path`. What is written there moves to `path` at the end, or is removed after an error."""
    with TemporaryDirectory(prefix=".export-", dir=path.parent) as folder:
        yield Path(folder) / path.name
        for written in sorted(Path(folder).iterdir()):  # ONNX may write a second file with the weights
            move(written, check_new_file(path.parent / written.name))


def write_predictions(
    path: Path, arrays: "Mapping[str, np.ndarray]", names: Sequence[str] = (), classes: Sequence[str] = ()
) -> None:
    """Write the predictions for each row of a split, in the order of the rows.

    Args:
        path: a .npz file has the arrays [n, ...] by name, a .csv file a column for each number of a row.
        arrays: the predictions [n, ...] by name.
        names: a name for each row, such as its file; may be empty.
        classes: names of the classes. Arrays [n, classes] get a column for each, and one with the class of the largest number.

    Raises:
        CheckpointError: the file can't be written.
    """
    import numpy as np

    try:
        if path.suffix == ".npz":
            with open(path, "xb") as file:
                labels = {"files": names[: _count_rows(arrays)], "class_names": classes}
                np.savez(file, **{k: np.array(v) for k, v in labels.items() if v} | dict(arrays))
        else:
            write_atomic(path, _table(arrays, names, classes))
    except OSError as error:
        raise CheckpointError(f"{path} can't be written ({error.strerror or error}).") from error


def _count_rows(arrays: "Mapping[str, np.ndarray]") -> int:
    return min(map(len, arrays.values()), default=0)


def _table(arrays: "Mapping[str, np.ndarray]", names: Sequence[str], classes: Sequence[str]) -> str:
    columns: dict[str, Iterable[Any]] = {"row": range(_count_rows(arrays))}
    if names:
        columns["file"] = names[: _count_rows(arrays)]
    for name, array in arrays.items():
        flat = array.reshape(len(array), -1)
        of_classes = len({*classes}) == len(classes) > 1 and array.shape[1:] == (len(classes),)
        for number, label in enumerate(classes if of_classes else range(flat.shape[1])):
            columns[f"{name}_{label}"] = map(repr, flat[:, number].tolist())
        if of_classes:
            columns[f"{name}_class"] = [classes[k] for k in flat.argmax(axis=1)]
    return csv_table(columns)


def csv_table(columns: Mapping[str, Iterable[Any]]) -> str:
    """Return columns of one length, by name, as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()
