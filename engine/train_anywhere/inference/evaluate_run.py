"""What `src/evaluate.py` does here: the model is opened, and then each thing is done that was asked for."""

from pathlib import Path

import numpy as np

from train_anywhere.errors import ConfigError
from train_anywhere.files.plain_json import dumps
from train_anywhere.inference.opening import Opened, open_model
from train_anywhere.inference.output_files import export_file, write_metrics
from train_anywhere.inference.predictions import named_arrays, write_predictions
from train_anywhere.inference.request import FORMATS, Asked
from train_anywhere.runs.summary import display_path


def evaluate(asked: Asked) -> int:
    """Measure, predict, generate or export. Nothing is overwritten, and a run that trains is not disturbed.

    Raises:
        ConfigError, CheckpointError, DataError: what can't be done, before anything is written.
    """
    opened = open_model(asked.run, asked.words, asked.typed.checkpoint)
    if asked.export:
        ending = FORMATS[asked.config.framework][asked.export]
        path = export_file(asked.run, opened.saved, asked.to, ending)
        opened.model.export(asked.export, path)
        print(f"{asked.export}: {display_path(path)}")
    if asked.typed.generate is not None:
        print(generated(opened, asked))
    if asked.predictions is not None or not (asked.export or asked.typed.generate is not None):
        measure(opened, asked.typed.split, asked.predictions)
    return 0


def measure(opened: Opened, split: str | None, predictions: Path | None) -> None:
    """Print and write the metrics of a split, and what the model answers to its rows; None: of the first that can be measured."""
    split = split or next(iter(opened.model.measurable(predictions is not None)), "test")
    metrics, rows = opened.model.measure(split, predicting=predictions is not None)
    print(dumps({"checkpoint": str(opened.saved.path), "split": split, "metrics": metrics}), end="")
    if predictions is not None:
        facts = opened.model.facts
        names = facts.get("row_names", {}).get(split, list)()
        write_predictions(predictions, named_arrays(rows), names, list(facts.get("class_names", ())))
        print(f"predictions: {display_path(predictions)}")
    print(f"metrics: {display_path(write_metrics(opened.run, opened.saved, split, metrics))}")


def generated(opened: Opened, asked: Asked) -> str:
    """The text and how the model continues it.

    Raises:
        ConfigError: the task generates nothing, or the data has no `text` among its facts: an object with `encode` and `decode`.
    """
    generate, text = opened.model.generate, opened.model.facts.get("text")
    if generate is None:
        raise ConfigError(f"--generate continues texts, and task={opened.config.task.name} has no generate.")
    if text is None:
        raise ConfigError(f"--generate needs the data's text, and data={opened.config.data.name} has none.")
    prompt = [int(token) for token in text.encode(asked.typed.generate)] or [int(text.end)]
    tokens = generate(prompt, asked.typed.tokens, asked.typed.temperature, asked.typed.seed)
    return str(text.decode(np.asarray(tokens)))
