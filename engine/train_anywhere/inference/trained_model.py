"""Opening a run folder to use its model (configuration, checkpoint, weights), and the checked arguments of `src/evaluate.py`."""

import argparse
import glob
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from train_anywhere.checkpoints.choice import choose, read_chosen
from train_anywhere.checkpoints.disk.manifest import SavedCheckpoint
from train_anywhere.config.choices import PlainStrategy
from train_anywhere.config.command.compose import compose
from train_anywhere.config.command.yaml_files import parse
from train_anywhere.config.keys import LIST_GROUPS, SINGLE_GROUPS, defaults, flatten, unflatten
from train_anywhere.config.limits import MAX_COUNT
from train_anywhere.config.load import load
from train_anywhere.config.paths import write_problem
from train_anywhere.config.schema import Config
from train_anywhere.errors import CheckpointError, ConfigError, listed
from train_anywhere.files import ROOT, STANDALONE
from train_anywhere.files.root import shell_folder
from train_anywhere.files.terminal.fit import FittedHelp
from train_anywhere.launch.rank import import_framework_module
from train_anywhere.runs.folder import RunDir, open_run
from train_anywhere.runs.reopen.frozen import read_frozen
from train_anywhere.runs.reopen.resume import read_run_overrides, select_group_choices
from train_anywhere.runs.reopen.trust import is_known_code, refuse_untrusted
from train_anywhere.training.plan import refuse_other_framework

if TYPE_CHECKING:
    from train_anywhere.inference.predictor import Predictor

CHANGEABLE = ("data.dir", "data.cache", "data.index", "data.workers", "paths.data", "trust", "trainer.accelerator", "trainer.precision",
              "trainer.limit_train_batches", "trainer.limit_val_batches", "trainer.limit_test_batches")  # fmt: skip
"""Keys that may differ from the run's: the place of the data, the device and precision, and the number of batches."""

CHOICE_SECTIONS = tuple(f"{group}." for group in (*SINGLE_GROUPS, *LIST_GROUPS, "strategy"))
"""Sections whose keys depend on the chosen config group."""


T = TypeVar("T")


def load_model(run: str | Path, checkpoint: str | int = "best", trust: bool = False) -> "Predictor":
    """Return the trained model of a run, on the CPU and ready to predict.

    `model.predict(files or arrays)` prepares new data like the run and returns labels and probabilities. `model(batch)` calls the
    network of `model=`, or your own module. Outside of a project, a run that this user has run there, or trusts, uses the snapshot
    of its code.

    Args:
        run: a run folder.
        checkpoint: "best", "newest" or a step.
        trust: use values that only the run folder has, see docs/concepts/security.md.

    Raises:
        CheckpointError, ConfigError: the run or the checkpoint does not exist or can't be read.
    """
    # imports numpy, which a submission does not need
    from train_anywhere.inference.predictor import Predictor

    words = ["trainer.accelerator=cpu", *(["trust=true"] if trust else [])]
    return use_model(find_run(str(run)), words, checkpoint, lambda _, model: Predictor(model, model.config))


def find_run(named: str) -> RunDir:
    """Return a run by its folder, or by its id below results/. Raises CheckpointError."""
    known = [] if "/" in named else sorted((ROOT / "results").glob(f"*/{named}/config.yaml"))
    return open_run(known[0].parent if len(known) == 1 and not os.path.exists(named) else named)


def use_model(
    run: RunDir, words: Sequence[str], checkpoint: str | int, use: Callable[[SavedCheckpoint, Any], T]
) -> T:
    """Return the result of `use` for a checkpoint and its model, also if its data can't be read here: the run has recorded its shapes.

    Raises:
        CheckpointError, ConfigError, DataError: the run or the checkpoint can't be read here, or the data, and no shapes are recorded.
    """
    try:
        return use(*open_model(run, words, checkpoint))
    except CheckpointError:
        raise
    except Exception as error:  # user code that opens the data may raise any
        try:
            return use(*open_model(run, words, checkpoint, without_data=error))
        except Exception as second:
            raise second if isinstance(second, CheckpointError) else error from None


def open_model(
    run: RunDir, words: Sequence[str], checkpoint: str | int, without_data: Exception | None = None
) -> tuple[SavedCheckpoint, Any]:
    """Return a checkpoint of a run, and its trained model, see `training/<framework>/inference.py`.

    With `without_data`, the error of its data, random rows of the recorded shapes are its data.
    Raises CheckpointError, ConfigError, DataError: the run, the checkpoint or the data can't be read here.
    """
    config = use_one_device(read_config(run, words))

    def read(saved: SavedCheckpoint) -> tuple[SavedCheckpoint, Any]:
        refuse_other_framework(saved, config.framework)
        framework = import_framework_module(config.framework, "inference")
        splits = None
        if without_data is not None:
            from train_anywhere.data.recorded import recorded_splits  # imports numpy

            splits = recorded_splits(run.read_info(), config.data.batch_size, without_data)
        return saved, framework.open_trained_model(config, saved.path, splits)

    return read_chosen(run, checkpoint, read)


def read_config(run: RunDir, words: Sequence[str]) -> Config:
    """Return the run's configuration with the changes in `words`.

    Raises:
        ConfigError: a key can't be changed, a value is not allowed, or the run folder has untrusted values.
        CheckpointError: the run folder is damaged.
    """
    frozen, changes = flatten(read_frozen(run)), _parse_changes(words)
    trusted = changes.pop("trust", False)
    wanted = {**frozen, **changes}
    if STANDALONE:
        return _read_alone(run, wanted, changes, trusted)
    if str(ROOT) not in sys.path:  # a program elsewhere, with TRAIN_ROOT
        sys.path.append(str(ROOT))
    here = flatten(compose(select_group_choices(read_run_overrides(run))))
    if not trusted:
        refuse_untrusted(run.path, wanted, {**here, **changes}, training=False)
    # keys that did not exist when the run started
    newer = {k: v for k, v in here.items() if k not in frozen and not k.startswith(CHOICE_SECTIONS)}
    return load(unflatten({**newer, **wanted}))


_used: list[Path] = []
"""The folder of code that this process imports from, outside of a project."""


def _read_alone(run: RunDir, wanted: dict[str, Any], changes: dict[str, Any], trusted: bool) -> Config:
    """Return the configuration outside of a project, with the run's code. Raises ConfigError."""
    code = run.path / "code"
    if not trusted:
        try:
            refuse_untrusted(run.path, wanted, changes, training=False)
            if code.is_dir() and not is_known_code(run.path):
                raise ConfigError(f"{code} is not the code that you have submitted.")
        except ConfigError as error:
            raise ConfigError(
                f"you have not run {run.path} from there, and {code if code.is_dir() else 'what it names'} would run as you: read it, and "
                f'call load_model("{run.path}", trust=True).'
            ) from error
    if code.is_dir() and code not in _used:
        if _used:
            raise ConfigError(
                f"this process has imported the code of {_used[0].parent}, and modules of {run.path} may have the same names; load it in "
                "another process."
            )
        _used.append(code)
        sys.path.insert(0, str(code))
    try:
        return load(unflatten({**flatten(defaults(Config)), **wanted}))
    except ConfigError as error:
        if code.is_dir():
            raise
        commit = str(run.read_info().get("commit") or "HEAD")[:12]
        raise ConfigError(
            f"{run.path} has no code of its own, as it ran without a job; in its project, type `mkdir RUN/code && git archive {commit} | "
            f"tar -x -C RUN/code`, or set TRAIN_ROOT to the project's folder. Without it: {error.problems[0]}"
        ) from error


def _parse_changes(words: Sequence[str]) -> dict[str, Any]:
    changes, problems = {}, []
    for key, _, value in (word.partition("=") for word in words):
        if key not in CHANGEABLE:
            submits = "; `python src/run.py cluster=NAME -- src/evaluate.py RUN` submits an evaluation"
            known = f"only {listed(CHANGEABLE)} can{submits if key == 'cluster' else ''}"
            problems.append(f"{key}={value} can't be changed for a run that exists; {known}.")
        else:
            try:
                changes[key] = parse(f"{key}: {value}")[key]
            except yaml.YAMLError:
                problems.append(f"{key}={value} is not a YAML value.")
    if problems:
        raise ConfigError(*problems)
    return changes


def use_one_device(config: Config) -> Config:
    """Return the configuration for one device, without features, with the global batch size."""
    trainer = replace(config.trainer, nodes=1, devices=1, total_devices=None)
    return replace(config, strategy=PlainStrategy("single"), trainer=trainer, features={})


FORMATS = {
    "lightning": {
        "torch": ".pt",
        "safetensors": ".safetensors",
        "peft": "-peft",
        "torch.export": ".pt2",
        "onnx": ".onnx",
    },
    "keras": {"keras": ".keras", "savedmodel": "-savedmodel"},
}
"""Export formats of each framework, with the end of the default name; one that starts with a dash is a folder."""

OTHER_WAYS = {
    "lightning hf": " For transformers, in Python: load_model(RUN).network.model.save_pretrained(FOLDER).",
    "keras onnx": " For ONNX use --export savedmodel --to FOLDER and pip install tf2onnx; then: "
    "python -m tf2onnx.convert --saved-model FOLDER --output model.onnx.",
    "keras safetensors": " For safetensors: safetensors.numpy.save_file({v.path: v.numpy() for v in "
    "load_model(RUN).network.weights}, FILE).",
}
"""How to write a model in a format that the engine does not write, by framework and format."""

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
    known = ", ".join(name for formats in FORMATS.values() for name in formats)
    add("--export", metavar="FORMAT", help=f"write the model as {known}")
    add("--to", metavar="FILE", help="file of the export (default: in the run folder)")
    return made


def check_request(parsed: argparse.Namespace, words: Sequence[str]) -> argparse.Namespace:
    """Return the checked arguments, with `run`, `config`, the `files` to predict, and a Path for each new file.

    `words` are the run and the changes to its configuration; the returned ones are only the changes. Raises ConfigError, CheckpointError.
    """
    runs = [word for word in words if "=" not in word or os.path.exists(word)]
    if len(runs) > 1:
        raise ConfigError(f"one run at a time: {' and '.join(runs)} are {len(runs)}; name one.")
    run = find_run(runs[0] if runs else str(ROOT / "results" / "latest"))
    changes = [word for word in words if word not in runs]
    refuse_bad_values(parsed)
    config = read_config(run, changes)
    known, format = FORMATS[config.framework], parsed.export
    if format and format not in known:
        way = OTHER_WAYS.get(f"{config.framework} {format}", "")
        raise CheckpointError(
            f"--export {format} is not a format of a run with framework={config.framework}; use one of {listed([*known])}.{way}"
        )
    choose(run, parsed.checkpoint, checksums=False)
    files = {name: getattr(parsed, name) for name in ("to", "predict", "output")}
    new: dict[str, Any] = {name: check_new_file(Path(file)) for name, file in files.items() if file}
    new |= {"run": run, "config": config, "words": changes, "files": matching_files(parsed.predict_files)}
    return argparse.Namespace(**vars(parsed) | new)


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


def refuse_bad_values(parsed: argparse.Namespace) -> None:
    """Raise ConfigError for numbers out of range, or an invalid name of a checkpoint."""
    known = re.fullmatch("best|newest|[0-9]{1,19}", parsed.checkpoint)
    named = not parsed.predict or parsed.predict.endswith((".npz", ".csv"))
    has_table = parsed.predict_files or not parsed.output
    fine = {
        f"--checkpoint {parsed.checkpoint} is not a checkpoint; use best, newest or a step such as 230.": known,
        f"--tokens {parsed.tokens} must be from 1 to {MAX_COUNT}.": 1 <= parsed.tokens <= MAX_COUNT,
        f"--temperature {parsed.temperature} must be 0 or above.": 0 <= parsed.temperature < math.inf,
        f"--seed {parsed.seed} must not be negative.": 0 <= parsed.seed < 2**63,
        f"--predict {parsed.predict}: the name must end in .npz or .csv.": named,
        "--output keeps the table of --predict-files; add --predict-files PATTERN.": has_table,
        "--to names the file of an export; add --export FORMAT.": parsed.export or not parsed.to,
    }
    if problems := [message for message, holds in fine.items() if not holds]:
        raise ConfigError(*problems)
