"""The evaluation that `src/evaluate.py` runs in this process."""

from pathlib import Path

import numpy as np

from train_anywhere.data.array_data import flatten_arrays
from train_anywhere.errors import ConfigError
from train_anywhere.files.atomic import dumps, write_atomic
from train_anywhere.inference.output_files import (
    draft_export,
    export_file,
    write_metrics,
    write_predictions,
)
from train_anywhere.inference.predictor import Predictor
from train_anywhere.inference.request import FORMATS, EvaluationRequest
from train_anywhere.inference.trained_model import LoadedRun, open_model, use_model
from train_anywhere.runs.summary import display_path


def evaluate(request: EvaluationRequest) -> int:
    """Measure, predict, generate or export. Nothing is overwritten.

    Raises:
        ConfigError, CheckpointError, DataError: the request can't be carried out; nothing was written.
    """
    typed = request.typed
    other = request.files or typed.generate is not None or typed.predict
    if typed.export:
        use_model(request.run, request.words, typed.checkpoint, lambda loaded: export(loaded, request))
        if not other:
            return 0
    loaded = open_model(request.run, request.words, typed.checkpoint)
    if typed.generate is not None:
        print(generate_text(loaded, request))
    if request.files:
        table = Predictor(loaded.model, loaded.config).predict(request.files).table()
        if typed.output:
            write_atomic(typed.output, table)
        print(f"predictions: {display_path(typed.output)}" if typed.output else table.rstrip())
    if typed.predict or not other:
        measure(loaded, typed.split, typed.predict)
    return 0


def export(loaded: LoadedRun, request: EvaluationRequest) -> None:
    """Write the model as `--export` names. Raises CheckpointError, ConfigError."""
    format = request.typed.export
    path = export_file(request.run, loaded.saved, request.typed.to, FORMATS[request.config.framework][format])
    with draft_export(path) as draft:
        loaded.model.export(format, draft)
    print(f"{format}: {display_path(path)}")


def measure(loaded: LoadedRun, split: str | None, predictions: Path | None) -> None:
    """Print and write the metrics of a split (None: the first), and its predictions."""
    split = split or next(iter(loaded.model.list_splits(predictions is not None)), "test")
    metrics, rows = loaded.model.measure(split, predicting=predictions is not None)
    print(dumps({"checkpoint": str(loaded.saved.path), "split": split, "metrics": metrics}), end="")
    if predictions is not None:
        facts = loaded.model.facts
        names = facts.get("row_names", {}).get(split, list)()
        write_predictions(predictions, flatten_arrays(rows), names, list(facts.get("class_names", ())))
        print(f"predictions: {display_path(predictions)}")
    print(f"metrics: {display_path(write_metrics(loaded.run, loaded.saved, split, metrics))}")


def generate_text(loaded: LoadedRun, request: EvaluationRequest) -> str:
    """Return the prompt and its continuation by the model.

    Raises:
        ConfigError: the task has no `generate`, or the data's facts have no `text`, an object with `encode` and `decode`.
    """
    generate, text = loaded.model.generate, loaded.model.facts.get("text")
    if generate is None:
        raise ConfigError(f"--generate can't be used: task={loaded.config.task.name} has no generate.")
    if text is None:
        raise ConfigError(f"--generate needs the data's text, and data={loaded.config.data.name} has none.")
    prompt = [int(token) for token in text.encode(request.typed.generate)] or [int(text.end)]
    tokens = generate(prompt, request.typed.tokens, request.typed.temperature, request.typed.seed)
    return str(text.decode(np.asarray(tokens)))
