"""The arguments of `src/evaluate.py`, checked without a framework."""

import argparse
import glob
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from train_anywhere.checkpoints.choice import choose
from train_anywhere.config.limits import MAX_COUNT
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError
from train_anywhere.files import ROOT
from train_anywhere.files.root import shell_folder
from train_anywhere.files.terminal.fit import FittedHelp
from train_anywhere.inference.output_files import ENDINGS, check_new_file
from train_anywhere.inference.trained_model import find_run, read_config, refuse_export
from train_anywhere.runs.folder import RunDir

FORMATS = {
    "lightning": {
        "torch": ".pt",
        "safetensors": ".safetensors",
        "hf": "-hf",
        "peft": "-peft",
        "torch.export": ".pt2",
        "onnx": ".onnx",
    },
    "keras": {"keras": ".keras", "savedmodel": "-savedmodel"},
}
"""Export formats of each framework, with the end of the default name; one that starts with a dash is a folder."""

ALL_FORMATS = [name for formats in FORMATS.values() for name in formats]

WORDS_HELP = "run folder or run id (default: the newest run), and changes such as data.dir=DIR"


def make_parser(description: str) -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=description, formatter_class=FittedHelp)
    add = made.add_argument
    add("words", nargs="*", metavar="RUN key=value", help=WORDS_HELP)
    add("--checkpoint", default="best", metavar="best|newest|STEP", help="whose weights (%(default)s)")
    add("--split", choices=("test", "val", "train"), help="part of the data (default: the first that exists)")
    add("--predict", metavar="FILE", help="write the predictions for each row: a new .npz or .csv")
    add("--predict-files", metavar="PATTERN", help="predict for new files, such as 'DIR/*.jpg'")
    add("--output", metavar="FILE", help="a new .csv for --predict-files (default: print it)")
    add("--generate", metavar="TEXT", help="continue a prompt, with a language model")
    add("--tokens", type=int, default=200, metavar="N", help="number of tokens to generate (%(default)s)")
    add("--temperature", type=float, default=0.8, help="0 takes the most probable token (%(default)s)")
    add("--seed", type=int, default=1, help="seed of the generation (%(default)s)")
    add("--export", metavar="FORMAT", help=f"write the model as {', '.join(ALL_FORMATS)}")
    add("--to", metavar="FILE", help="file of the export (default: in the run folder)")
    return made


@dataclass(frozen=True)
class EvaluationRequest:
    """A checked request: `words` are the changes of the configuration, `typed` has a Path for each new file."""

    run: RunDir
    config: Config
    words: list[str]
    files: list[Path]
    typed: argparse.Namespace


def check_request(parsed: argparse.Namespace, words: Sequence[str]) -> EvaluationRequest:
    """Check the arguments: `words` are the run and the changes to its configuration.

    Raises ConfigError, CheckpointError.
    """
    run, changes = split_run(words)
    refuse_bad_values(parsed)
    config = read_config(run, changes)
    if parsed.export:
        refuse_export(config.framework, parsed.export, list(FORMATS[config.framework]))
    choose(run, parsed.checkpoint, checksums=False)
    files = {name: getattr(parsed, name) for name in ("to", "predict", "output")}
    new = {name: check_new_file(Path(file)) for name, file in files.items() if file}
    typed = argparse.Namespace(**vars(parsed) | new)
    return EvaluationRequest(run, config, changes, matching_files(parsed.predict_files), typed)


def matching_files(pattern: str | None) -> list[Path]:
    """Return the files that match a pattern of the shell, sorted. Raises ConfigError."""
    if pattern is None:
        return []
    found = sorted(glob.glob(os.path.expanduser(str(shell_folder() / pattern)), recursive=True))
    if files := [Path(path) for path in found if os.path.isfile(path)]:
        return files
    raise ConfigError(
        f"--predict-files {pattern}: no file matches; put a pattern in quotes, such as 'photos/*.jpg'."
    )


def split_run(words: Sequence[str]) -> tuple[RunDir, list[str]]:
    """Return the run and the changes among the arguments. Raises ConfigError for a second run."""
    runs = [word for word in words if "=" not in word or os.path.exists(word)]
    if len(runs) > 1:
        raise ConfigError(f"one run at a time: {' and '.join(runs)} are {len(runs)}; name one.")
    run = find_run(runs[0]) if runs else find_run(str(ROOT / "results" / "latest"))
    return run, [word for word in words if word not in runs]


def refuse_bad_values(parsed: argparse.Namespace) -> None:
    """Raise ConfigError for numbers out of range, or an invalid name of a checkpoint."""
    problems = []
    if not (parsed.checkpoint in ("best", "newest") or re.fullmatch("[0-9]{1,19}", parsed.checkpoint)):
        problems.append(
            f"--checkpoint {parsed.checkpoint} is not a checkpoint; use best, newest or a step such as 230."
        )
    if not 1 <= parsed.tokens <= MAX_COUNT:
        problems.append(f"--tokens {parsed.tokens} must be from 1 to {MAX_COUNT}.")
    if not 0 <= parsed.temperature < math.inf:
        problems.append(f"--temperature {parsed.temperature} must be 0 or above.")
    if not 0 <= parsed.seed < 2**63:
        problems.append(f"--seed {parsed.seed} must not be negative.")
    if parsed.predict and not parsed.predict.endswith(ENDINGS):
        problems.append(f"--predict {parsed.predict}: the name must end in {' or '.join(ENDINGS)}.")
    if parsed.output and not parsed.predict_files:
        problems.append("--output keeps the table of --predict-files; add --predict-files PATTERN.")
    if parsed.to and not parsed.export:
        problems.append("--to names the file of an export; add --export FORMAT.")
    if problems:
        raise ConfigError(*problems)
