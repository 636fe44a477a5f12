"""Files of what a model answers to the rows of a split."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from src.errors import CheckpointError
from src.files.atomic import write_atomic


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
