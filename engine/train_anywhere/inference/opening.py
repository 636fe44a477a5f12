"""A run folder, read as one process would train it: its configuration, a checkpoint, the model with those weights."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from train_anywhere.checkpoints.choice import read_chosen
from train_anywhere.checkpoints.info import SavedCheckpoint
from train_anywhere.config.choices import PlainStrategy
from train_anywhere.config.command.compose import compose
from train_anywhere.config.flat import flatten, unflatten
from train_anywhere.config.load import load
from train_anywhere.config.open_groups import CHOSEN, LISTED
from train_anywhere.config.schema import Config
from train_anywhere.errors import CheckpointError, ConfigError
from train_anywhere.files import ROOT
from train_anywhere.launch.rank import side
from train_anywhere.runs.folder import RunDir, open_run
from train_anywhere.runs.reopen.frozen import read_frozen
from train_anywhere.runs.reopen.resume import chosen_lines, saved_lines
from train_anywhere.runs.reopen.trust import refuse_foreign
from train_anywhere.training.resuming import refuse_other_framework

CHANGEABLE = ("data.dir", "data.cache", "data.workers", "paths.data", "trust", "trainer.accelerator", "trainer.precision",
              "trainer.limit_train_batches", "trainer.limit_val_batches", "trainer.limit_test_batches")  # fmt: skip
"""Keys that may differ from the run's: where the data is, and on what to compute how much."""

OF_CHOICES = tuple(f"{group}." for group in (*CHOSEN, *LISTED, "strategy"))
"""Sections whose keys depend on what was chosen."""


@dataclass(frozen=True)
class Opened:
    """A run to be read.

    Attributes:
        model: of the framework's `after.py`.
        saved: the checkpoint that its weights are of.
    """

    run: RunDir
    config: Config
    saved: SavedCheckpoint
    model: Any


def load_model(run: str | Path, checkpoint: str | int = "best", trust: bool = False) -> Any:
    """The trained network of a run: as its framework has networks, on the CPU and ready to predict.

    Of a native task it is the network; of a drop-in model that model itself.

    Args:
        run: a run folder.
        checkpoint: "best", "newest" or a step.
        trust: use what only the run folder brings, see docs/trust.md.

    Raises:
        CheckpointError, ConfigError: there is no such run or checkpoint, or it can't be read.
    """
    words = ["trainer.accelerator=cpu", *(["trust=true"] if trust else [])]
    return open_model(find(str(run)), words, checkpoint).model.network


def find(named: str) -> RunDir:
    """A run by its folder, or by its id below results/. Raises CheckpointError."""
    known = [] if "/" in named else sorted((ROOT / "results").glob(f"*/{named}/config.yaml"))
    return open_run(known[0].parent if len(known) == 1 and not Path(named).exists() else named)


def open_model(run: RunDir, words: Sequence[str], checkpoint: str | int) -> Opened:
    """The model of the run, with the weights of a checkpoint.

    Args:
        words: changes to the configuration, as key=value; see `CHANGEABLE`.

    Raises:
        CheckpointError, ConfigError, DataError: what can't be read, or not here.
    """
    config = alone(read_config(run, words))

    def read(saved: SavedCheckpoint) -> Opened:
        refuse_other_framework(saved, config.framework)
        return Opened(
            run, config, saved, side(config.framework, "inference").open_trained(config, saved.path)
        )

    return read_chosen(run, checkpoint, read)


def read_config(run: RunDir, words: Sequence[str]) -> Config:
    """The run's own configuration with these changes.

    Raises:
        ConfigError: another key, a value that it can't have, or code that this project does not have.
        CheckpointError: it is damaged.
    """
    frozen, changes = flatten(read_frozen(run)), _changes(words)
    here = flatten(compose(chosen_lines(saved_lines(run))))
    if not changes.pop("trust", False):
        refuse_foreign(run.path, {**frozen, **changes}, {**here, **changes}, training=False)
    younger = {
        k: v for k, v in here.items() if k not in frozen and not k.startswith(OF_CHOICES)
    }  # than the run
    return load(unflatten({**younger, **frozen, **changes}))


def _changes(words: Sequence[str]) -> dict[str, Any]:
    changes, problems = {}, []
    for key, _, value in (word.partition("=") for word in words):
        if key not in CHANGEABLE:
            problems.append(
                f"{key}={value} can't be changed for a run that exists; only {', '.join(CHANGEABLE)} can."
            )
        else:
            try:
                changes[key] = yaml.safe_load(value)
            except yaml.YAMLError:
                problems.append(f"{key}={value} is no value.")
    if problems:
        raise ConfigError(*problems)
    return changes


def alone(config: Config) -> Config:
    """The same on one device of this process, without features of the project; the global batch stays."""
    trainer = replace(config.trainer, nodes=1, devices=1, total_devices=None)
    return replace(config, strategy=PlainStrategy("single"), trainer=trainer, features={})


def refuse_export(framework: str, format: str, known: Sequence[str]) -> None:
    """Raise CheckpointError for a format that the framework does not write."""
    if format not in known:
        raise CheckpointError(
            f"--export {format} is not a format of a run with framework={framework}; use one of {', '.join(known)}."
        )
