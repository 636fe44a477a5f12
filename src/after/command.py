"""What `src/evaluate.py` does, in the order in which it can be refused: words, run, weights; then each thing that was asked for."""

import argparse
import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from src.after.opening import Opened, find, open_model, read_config, refuse_export
from src.after.results import (
    export_file,
    free,
    named_arrays,
    prediction_file,
    write_metrics,
    write_predictions,
)
from src.checkpoints.choose import choose
from src.config.limits import MOST
from src.errors import ConfigError
from src.files import ROOT
from src.files.plain_json import dumps
from src.runs.folder import RunDir
from src.runs.summary import display_path

FORMATS = {
    "lightning": {"torch": ".pt", "torch.export": ".pt2", "onnx": ".onnx"},
    "keras": {"keras": ".keras", "savedmodel": ""},
}
"""Of each framework, with the ending of its file; SavedModel is a folder."""

EVERY = [name for formats in FORMATS.values() for name in formats]
NEAR = {
    "pt": "torch",
    "weights.pt": "torch",
    "state_dict": "torch",
    "pt2": "torch.export",
    "saved_model": "savedmodel",
}
"""Other words for the same."""


WORDS = "run folder or run id (default: the newest run), and changes such as data.dir=DIR"


def parser(description: str) -> argparse.ArgumentParser:
    """The words of the command."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = made.add_argument
    add("words", nargs="*", metavar="RUN key=value", help=WORDS)
    add("--checkpoint", default="best", metavar="best|newest|STEP", help="whose weights (%(default)s)")
    add("--split", default="test", choices=("test", "val", "train"), help="part of the data (%(default)s)")
    add("--predict", metavar="FILE", help="write what the model answers to each row: a new .npz or .csv")
    add("--generate", metavar="TEXT", help="continue a text, with a language model")
    add("--tokens", type=int, default=200, metavar="N", help="how many are generated (%(default)s)")
    add("--temperature", type=float, default=0.8, help="0 takes the most probable token (%(default)s)")
    add("--seed", type=int, default=1, help="of what is drawn (%(default)s)")
    add("--export", metavar="FORMAT", help=f"write the model as {', '.join(EVERY)}")
    add("--to", metavar="FILE", help="of the export (default: in the run folder)")
    return made


def evaluate(parsed: argparse.Namespace) -> int:
    """Measure, predict, generate or export. Nothing is overwritten, and a run that trains is not disturbed.

    Raises:
        ConfigError, CheckpointError, DataError: what can't be done, before anything is written.
    """
    run, words = named_run(parsed.words)
    refuse_numbers(parsed)
    export = NEAR.get(parsed.export, parsed.export)
    config = read_config(run, words)
    if export:
        refuse_export(config.framework, export, list(FORMATS[config.framework]))
    if parsed.to:
        free(Path(parsed.to))
    predictions = prediction_file(parsed.predict) if parsed.predict else None
    choose(run, parsed.checkpoint, checksums=False)
    opened = open_model(run, words, parsed.checkpoint)
    if export:
        path = export_file(run, opened.saved, parsed.to, FORMATS[config.framework][export])
        opened.model.export(export, path)
        print(f"{export}: {display_path(path)}")
    if parsed.generate is not None:
        print(generated(opened, parsed))
    if predictions is not None or not (export or parsed.generate is not None):
        measure(opened, parsed.split, predictions)
    return 0


def measure(opened: Opened, split: str, predictions: Path | None) -> None:
    """Print and write the metrics of a split, and what the model answers to its rows."""
    metrics, rows = opened.model.measure(split, predicting=predictions is not None)
    print(dumps({"checkpoint": str(opened.saved.path), "split": split, "metrics": metrics}), end="")
    if predictions is not None:
        write_predictions(predictions, named_arrays(rows))
        print(f"predictions: {display_path(predictions)}")
    print(f"metrics: {display_path(write_metrics(opened.run, opened.saved, split, metrics))}")


def generated(opened: Opened, parsed: argparse.Namespace) -> str:
    """The text and how the model continues it.

    Raises:
        ConfigError: the task generates nothing, or the data has no `text` among its facts: an object with `encode` and `decode`.
    """
    generate, text = opened.model.generate, opened.model.facts.get("text")
    if generate is None:
        raise ConfigError(f"--generate continues texts, and task={opened.config.task.name} has no generate.")
    if text is None:
        raise ConfigError(f"--generate needs the data's text, and data={opened.config.data.name} has none.")
    prompt = [int(token) for token in text.encode(parsed.generate)] or [int(text.end)]
    tokens = generate(prompt, parsed.tokens, parsed.temperature, parsed.seed)
    return str(text.decode(np.asarray(tokens)))


def named_run(words: Sequence[str]) -> tuple[RunDir, list[str]]:
    """The run, and the changes that follow it. Raises ConfigError for a second run."""
    named = [word for word in words if "=" not in word or Path(word).exists()]
    if len(named) > 1:
        raise ConfigError(f"one run at a time: {' and '.join(named)} are {len(named)}.")
    run = find(named[0]) if named else find(str(ROOT / "results" / "latest"))
    return run, [word for word in words if word not in named]


def refuse_numbers(parsed: argparse.Namespace) -> None:
    """Raise ConfigError for what no number can be, or a checkpoint that has no such name."""
    problems = []
    if not (parsed.checkpoint in ("best", "newest") or re.fullmatch("[0-9]{1,19}", parsed.checkpoint)):
        problems.append(
            f"--checkpoint {parsed.checkpoint} is not one; use best, newest or a step such as 230."
        )
    if not 1 <= parsed.tokens <= MOST:
        problems.append(f"--tokens {parsed.tokens} must be from 1 to {MOST}.")
    if not 0 <= parsed.temperature < math.inf:
        problems.append(f"--temperature {parsed.temperature} must be 0 or above.")
    if not 0 <= parsed.seed < 2**63:
        problems.append(f"--seed {parsed.seed} must not be negative.")
    if parsed.to and not parsed.export:
        problems.append("--to names the file of an export; add --export FORMAT.")
    if problems:
        raise ConfigError(*problems)
