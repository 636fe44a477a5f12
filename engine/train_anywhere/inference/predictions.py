"""Files with the predictions of a model for the rows of a split."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from train_anywhere.errors import CheckpointError
from train_anywhere.files.atomic import write_atomic


def write_predictions(
    path: Path, arrays: Mapping[str, np.ndarray], names: Sequence[str] = (), classes: Sequence[str] = ()
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
    try:
        if path.suffix == ".npz":
            with open(path, "xb") as file:
                labels = {"files": names[: _count_rows(arrays)], "class_names": classes}
                np.savez(file, **{k: np.array(v) for k, v in labels.items() if v} | dict(arrays))
        else:
            write_atomic(path, _table(arrays, names, classes))
    except OSError as error:
        raise CheckpointError(f"{path} can't be written ({error.strerror or error}).") from error


def _count_rows(arrays: Mapping[str, np.ndarray]) -> int:
    return min(map(len, arrays.values()), default=0)


def _table(arrays: Mapping[str, np.ndarray], names: Sequence[str], classes: Sequence[str]) -> str:
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
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()


def flatten_arrays(tree: Any, name: str = "predictions") -> dict[str, np.ndarray]:
    """Return the arrays in nested tuples and dicts by name: a single one is "predictions", others have keys or numbers as names."""
    if isinstance(tree, Mapping):
        return {k: v for key, value in tree.items() for k, v in flatten_arrays(value, str(key)).items()}
    if isinstance(tree, list | tuple):
        return {k: v for n, value in enumerate(tree) for k, v in flatten_arrays(value, f"{name}_{n}").items()}
    return {name: np.asarray(tree)}
