"""What was asked of `src/evaluate.py`, and whether it can be done: before any framework is imported, or a job is submitted."""

import argparse
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from train_anywhere.checkpoints.choice import choose
from train_anywhere.config.limits import MOST
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError
from train_anywhere.files import ROOT
from train_anywhere.inference.opening import find, read_config, refuse_export
from train_anywhere.inference.output_files import free, prediction_file
from train_anywhere.runs.awaited import awaited
from train_anywhere.runs.folder import RunDir

FORMATS = {
    "lightning": {"torch": ".pt", "torch.export": ".pt2", "onnx": ".onnx"},
    "keras": {"keras": ".keras", "savedmodel": ""},
}
"""Of each framework, with the ending of its file; one without is a folder."""

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
    add("--split", choices=("test", "val", "train"), help="part of the data (default: the first that exists)")
    add("--predict", metavar="FILE", help="write what the model answers to each row: a new .npz or .csv")
    add("--generate", metavar="TEXT", help="continue a text, with a language model")
    add("--tokens", type=int, default=200, metavar="N", help="how many are generated (%(default)s)")
    add("--temperature", type=float, default=0.8, help="0 takes the most probable token (%(default)s)")
    add("--seed", type=int, default=1, help="of what is drawn (%(default)s)")
    add("--export", metavar="FORMAT", help=f"write the model as {', '.join(EVERY)}")
    add("--to", metavar="FILE", help="of the export (default: in the run folder)")
    return made


@dataclass(frozen=True)
class Asked:
    """A command that can be carried out.

    Attributes:
        run, config: the run and its configuration, with the changes.
        words: these changes, as key=value.
        export: the format, by its first name.
        predictions, to: files to be written, absolute; None for none, or for the usual place.
        typed: the rest, as it was typed.
    """

    run: RunDir
    config: Config
    words: list[str]
    export: str | None
    predictions: Path | None
    to: Path | None
    typed: argparse.Namespace


def ask(parsed: argparse.Namespace, words: Sequence[str], after: str | None = None) -> Asked:
    """Check what was typed.

    Args:
        words: the run and the changes to its configuration.
        after: what the job is to follow; a checkpoint of that one need not be there yet.

    Raises:
        ConfigError, CheckpointError: what can't be done.
    """
    run, changes = named_run(words)
    refuse_numbers(parsed)
    export = NEAR.get(parsed.export, parsed.export)
    config = read_config(run, changes)
    if export:
        refuse_export(config.framework, export, list(FORMATS[config.framework]))
    to = free(Path(parsed.to)) if parsed.to else None
    predictions = prediction_file(parsed.predict) if parsed.predict else None
    if not awaited(after, run):
        choose(run, parsed.checkpoint, checksums=False)
    return Asked(run, config, changes, export, predictions, to, parsed)


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
