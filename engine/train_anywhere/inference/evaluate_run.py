"""The evaluation that `src/evaluate.py` runs in this process, and its files: metrics, predictions, exports."""

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from train_anywhere.checkpoints.disk.manifest import SavedCheckpoint
from train_anywhere.data.array_data import flatten_arrays
from train_anywhere.errors import CheckpointError, ConfigError
from train_anywhere.files.atomic import dumps, make_folder, move, read_text, write_atomic
from train_anywhere.inference.predictor import Predictor, csv_table
from train_anywhere.inference.trained_model import FORMATS, check_new_file, open_model, use_model
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.summary import display_path

EVALUATIONS, EXPORTS = "evaluations", "exports"
"""Folders in the run folder."""


def evaluate(request: argparse.Namespace) -> int:
    """Measure, predict, generate or export, as `check_request` returns it. Nothing is overwritten.

    Raises:
        ConfigError, CheckpointError, DataError: the request can't be carried out; nothing was written.
    """
    other = request.files or request.generate is not None or request.predict
    if request.export:
        use_model(request.run, request.words, request.checkpoint, partial(export, request))
        if not other:
            return 0
    saved, model = open_model(request.run, request.words, request.checkpoint)
    if request.generate is not None:
        print(generate_text(model, request))
    if request.files:
        table = Predictor(model, model.config).predict(request.files).table()
        if request.output:
            write_atomic(request.output, table)
        print(f"predictions: {display_path(request.output)}" if request.output else table.rstrip())
    if request.predict or not other:
        measure(request, saved, model)
    return 0


def export(request: argparse.Namespace, saved: SavedCheckpoint, model: Any) -> None:
    """Write the model as `--export` names. Raises CheckpointError, ConfigError."""
    format, path, folder = request.export, request.to, request.run.path / EXPORTS
    if not path:
        try:
            make_folder(folder)
        except OSError as error:
            raise CheckpointError(
                f"{folder} can't be made ({error.strerror}); name a file with --to FILE."
            ) from error
        path = check_new_file(folder / f"model-{saved.path.name}{FORMATS[request.config.framework][format]}")
    with draft_export(path) as draft:
        model.export(format, draft)
    print(f"{format}: {display_path(path)}")


def measure(request: argparse.Namespace, saved: SavedCheckpoint, model: Any) -> None:
    """Print and write the metrics of a split (by default the first), and its predictions."""
    predictions = request.predict
    split = request.split or next(iter(model.list_splits(predictions is not None)), "test")
    metrics, rows = model.measure(split, predicting=predictions is not None)
    print(dumps({"checkpoint": str(saved.path), "split": split, "metrics": metrics}), end="")
    if predictions is not None:
        facts = model.facts
        names = facts.get("row_names", {}).get(split, list)()
        write_predictions(predictions, flatten_arrays(rows), names, list(facts.get("class_names", ())))
        print(f"predictions: {display_path(predictions)}")
    print(f"metrics: {display_path(write_metrics(request.run, saved, split, metrics))}")


def generate_text(model: Any, request: argparse.Namespace) -> str:
    """Return the prompt and its continuation by the model.

    Raises:
        ConfigError: the task has no `generate`, or the data's facts have no `text`, an object with `encode` and `decode`.
    """
    generate, text, config = model.generate, model.facts.get("text"), request.config
    if generate is None:
        raise ConfigError(f"--generate can't be used: task={config.task.name} has no generate.")
    if text is None:
        raise ConfigError(f"--generate needs the data's text, and data={config.data.name} has none.")
    prompt = [int(token) for token in text.encode(request.generate)] or [int(text.end)]
    tokens = generate(prompt, request.tokens, request.temperature, request.seed)
    return str(text.decode(np.asarray(tokens)))


def write_metrics(run: RunDir, saved: SavedCheckpoint, split: str, metrics: Mapping[str, float]) -> Path:
    """Write RUN/evaluations/<split>-<step>[-N].json, return its path. Raises CheckpointError if it can't be written."""
    place = {"step": saved.step, "epoch": saved.epoch, "framework": saved.framework}
    content = dumps({"split": split, **place, "metrics": dict(metrics)})
    folder = run.path / EVALUATIONS
    try:
        make_folder(folder)
        for number in count(1):
            path = folder / f"{split}-{saved.path.name}{'' if number == 1 else f'-{number}'}.json"
            if not path.exists():
                write_atomic(path, content)
            with suppress(OSError, ValueError):
                if read_text(path) == content:
                    break
    except OSError as error:
        raise CheckpointError(f"{folder} can't be written ({error.strerror or error}).") from error
    return path


@contextmanager
def draft_export(path: Path) -> Iterator[Path]:
    """Yield a path in a new folder next to `path`. What is written there moves to `path` at the end, or is removed after an error."""
    with TemporaryDirectory(prefix=".export-", dir=path.parent) as folder:
        yield Path(folder) / path.name
        for written in sorted(Path(folder).iterdir()):  # ONNX may write a second file with the weights
            move(written, check_new_file(path.parent / written.name))


def write_predictions(
    path: Path, arrays: Mapping[str, np.ndarray], names: Sequence[str], classes: Sequence[str]
) -> None:
    """Write the predictions [n, ...] for each row of a split, by name. Raises CheckpointError if the file can't be written.

    A .npz file has the arrays, a .csv file a column for each number of a row. Arrays [n, classes] get a column for each of the `classes`,
    and one with the class of the largest number. `names` of the rows, such as their files, may be empty.
    """
    count = min(map(len, arrays.values()), default=0)
    names = names[:count]
    try:
        if path.suffix == ".npz":
            with open(path, "xb") as file:
                labels = {"files": names, "class_names": classes}
                np.savez(file, **{k: np.array(v) for k, v in labels.items() if v} | dict(arrays))
        else:
            rows = {"row": range(count), **({"file": names} if names else {})}
            write_atomic(path, csv_table({**rows, **_columns(arrays, classes)}))
    except OSError as error:
        raise CheckpointError(f"{path} can't be written ({error.strerror or error}).") from error


def _columns(arrays: Mapping[str, np.ndarray], classes: Sequence[str]) -> dict[str, Iterable[Any]]:
    columns: dict[str, Iterable[Any]] = {}
    for name, array in arrays.items():
        flat = array.reshape(len(array), -1)
        of_classes = len({*classes}) == len(classes) > 1 and array.shape[1:] == (len(classes),)
        for number, label in enumerate(classes if of_classes else range(flat.shape[1])):
            columns[f"{name}_{label}"] = map(repr, flat[:, number].tolist())
        if of_classes:
            columns[f"{name}_class"] = [classes[k] for k in flat.argmax(axis=1)]
    return columns
