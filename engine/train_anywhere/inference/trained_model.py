"""Opening a run folder to use its model: configuration, checkpoint, weights."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from train_anywhere.checkpoints.choice import read_chosen
from train_anywhere.checkpoints.disk.manifest import SavedCheckpoint
from train_anywhere.config.choices import PlainStrategy
from train_anywhere.config.command.compose import compose
from train_anywhere.config.command.yaml_files import parse
from train_anywhere.config.keys import LIST_GROUPS, SINGLE_GROUPS, defaults, flatten, unflatten
from train_anywhere.config.load import load
from train_anywhere.config.schema import Config
from train_anywhere.errors import CheckpointError, ConfigError, listed
from train_anywhere.files import ROOT, STANDALONE
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


@dataclass(frozen=True)
class LoadedRun:
    """A run with the trained model of `training/<framework>/inference.py`."""

    run: RunDir
    config: Config
    saved: SavedCheckpoint
    model: Any


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
    from train_anywhere.inference.predictor import (
        Predictor,  # imports numpy, which a submission does not need
    )

    words = ["trainer.accelerator=cpu", *(["trust=true"] if trust else [])]
    return use_model(
        find_run(str(run)), words, checkpoint, lambda loaded: Predictor(loaded.model, loaded.config)
    )


def find_run(named: str) -> RunDir:
    """Return a run by its folder, or by its id below results/. Raises CheckpointError."""
    known = [] if "/" in named else sorted((ROOT / "results").glob(f"*/{named}/config.yaml"))
    return open_run(known[0].parent if len(known) == 1 and not os.path.exists(named) else named)


def use_model(run: RunDir, words: Sequence[str], checkpoint: str | int, use: Callable[[LoadedRun], T]) -> T:
    """Return the result of `use` for the model of a run, also if its data can't be read here: the run has recorded its shapes.

    Raises:
        CheckpointError, ConfigError, DataError: the run or the checkpoint can't be read here, or the data, and no shapes are recorded.
    """
    try:
        return use(open_model(run, words, checkpoint))
    except CheckpointError:
        raise
    except Exception as error:  # user code that opens the data may raise any
        try:
            return use(open_model(run, words, checkpoint, without_data=error))
        except Exception as second:
            raise second if isinstance(second, CheckpointError) else error from None


def open_model(
    run: RunDir, words: Sequence[str], checkpoint: str | int, without_data: Exception | None = None
) -> LoadedRun:
    """Load the model of a run.

    With `without_data`, the error of its data, random rows of the recorded shapes are its data.
    Raises CheckpointError, ConfigError, DataError: the run, the checkpoint or the data can't be read here.
    """
    config = use_one_device(read_config(run, words))

    def read(saved: SavedCheckpoint) -> LoadedRun:
        refuse_other_framework(saved, config.framework)
        framework = import_framework_module(config.framework, "inference")
        splits = None
        if without_data is not None:
            from train_anywhere.data.recorded import recorded_splits  # imports numpy

            splits = recorded_splits(run.read_info(), config.data.batch_size, without_data)
        return LoadedRun(run, config, saved, framework.open_trained_model(config, saved.path, splits))

    return read_chosen(run, checkpoint, read)


def read_config(run: RunDir, words: Sequence[str]) -> Config:
    """Return the run's configuration with the changes in `words`.

    Raises:
        ConfigError: a key can't be changed, a value is not allowed, or the run folder has untrusted values.
        CheckpointError: the run folder is damaged.
    """
    frozen, changes = flatten(read_frozen(run)), _parse_changes(words)
    if STANDALONE:
        return _read_alone(run, frozen, changes)
    if str(ROOT) not in sys.path:  # a program elsewhere, with TRAIN_ROOT
        sys.path.append(str(ROOT))
    here = flatten(compose(select_group_choices(read_run_overrides(run))))
    if not changes.pop("trust", False):
        refuse_untrusted(run.path, {**frozen, **changes}, {**here, **changes}, training=False)
    # keys that did not exist when the run started
    newer = {k: v for k, v in here.items() if k not in frozen and not k.startswith(CHOICE_SECTIONS)}
    return load(unflatten({**newer, **frozen, **changes}))


_used: list[Path] = []
"""The folder of code that this process imports from, outside of a project."""


def _read_alone(run: RunDir, frozen: dict[str, Any], changes: dict[str, Any]) -> Config:
    """Return the configuration outside of a project, with the run's code. Raises ConfigError."""
    code = run.path / "code"
    if not changes.pop("trust", False):
        try:
            refuse_untrusted(run.path, {**frozen, **changes}, changes, training=False)
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
        return load(unflatten({**flatten(defaults(Config)), **frozen, **changes}))
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
            job = (
                "; `python src/run.py cluster=NAME -- src/evaluate.py RUN` submits an evaluation"
                if key == "cluster"
                else ""
            )
            problems.append(
                f"{key}={value} can't be changed for a run that exists; only {listed(CHANGEABLE)} can{job}."
            )
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


KERAS_WAYS = {
    "onnx": " For ONNX use --export savedmodel --to FOLDER and pip install tf2onnx; then: "
    "python -m tf2onnx.convert --saved-model FOLDER --output model.onnx.",
    "safetensors": " For safetensors: safetensors.numpy.save_file({v.path: v.numpy() for v in load_model(RUN).network.weights}, FILE).",
}
"""How to write a Keras model in a format that the engine does not write."""


def refuse_export(framework: str, format: str, known: Sequence[str]) -> None:
    """Raise CheckpointError for a format that the framework does not support."""
    if format not in known:
        way = KERAS_WAYS.get(format, "") if framework == "keras" else ""
        raise CheckpointError(
            f"--export {format} is not a format of a run with framework={framework}; use one of {listed(known)}.{way}"
        )
