"""`resume=RUN`: the frozen configuration, changed only by keys of the new command.

A complete run with nothing left to train prints a message, and the test is not repeated. With `from_scratch=true` the run starts again
from step 0, and its earlier results are kept:

<run folder>/before-1/    checkpoints/  metrics.csv  tensorboard/  steps  of the earlier training
"""

import itertools
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from train_anywhere.config.checks.strategy_table import SHARDED_STRATEGIES
from train_anywhere.config.command.compose import compose, list_groups, parse_override, quote_value
from train_anywhere.config.keys import flatten, unflatten
from train_anywhere.config.limits import duration_seconds
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError
from train_anywhere.files.atomic import move
from train_anywhere.files.removal import remove
from train_anywhere.files.terminal.fit import fit, terminal_width
from train_anywhere.files.terminal.printable import printable
from train_anywhere.runs.folder import RunDir, claim_part, open_run, part_of_run
from train_anywhere.runs.reopen.frozen import (
    COMMAND_KEYS,
    NOT_SAVED,
    read_frozen,
    read_overrides,
    refuse_damaged,
)
from train_anywhere.runs.reopen.trust import is_own, refuse_untrusted
from train_anywhere.runs.summary import display_path, format_summary, train_command

FIXED_KEYS = (
    "framework", "seed", "task.", "model.", "optimizer.name", "optimizer._target_", "data.name", "data._target_", "data.batch_size",
    "name", "init.", "paths.results", "trainer.micro_batch",
)  # fmt: skip
"""Keys that a checkpoint depends on, so `resume=` can't change them; a trailing dot means the whole section."""


def load_saved_overrides(arguments: Sequence[str]) -> list[str]:
    """Return the overrides of the run that `resume=...` names. Empty without it.

    Put before the new overrides, they select the same config groups, and the new ones take precedence. Of a run that this user has
    not run and does not trust, overrides with `${...}` are left out: composing them could read the environment. Raises ConfigError: the
    new overrides choose another model, data set or optimizer. Raises CheckpointError: it is not a run folder, or it is damaged.
    """
    paths = [a.lstrip("+").removeprefix("resume=") for a in arguments if a.lstrip("+").startswith("resume=")]
    if not paths or paths[-1] in ("null", ""):
        return []
    run = open_run(paths[-1].strip("'\""))
    refuse_damaged(run)
    # before composing, where options of the run's model would be taken for those of another one
    frozen = flatten(read_frozen(run))
    typed = {k if k in frozen else f"{k}.name": v for k, _, v in (a.partition("=") for a in arguments)}
    refused = {k: v for k, v in typed.items() if k.startswith(FIXED_KEYS) and str(frozen.get(k, v)) != v}
    if any(k.endswith(".name") for k in refused):
        raise _refusal(refused, frozen)
    saved = read_run_overrides(run)
    for line in [a for a in read_overrides(run) if NOT_SAVED.match(a)]:
        print(f"{run.overrides}: {line!r} belongs to one command and is not used again.", file=sys.stderr)
    problems = [
        f"'{a}' asks for several runs, but resume= continues one; give one value."
        for a in map(quote_value, arguments)
        if not a.startswith("-") and _parse(a, "this command").is_sweep_override()
    ]
    if problems:
        raise ConfigError(*problems)
    trusted = is_own(run.path) or any(a.lstrip("+").lower() == "trust=true" for a in arguments)
    return saved if trusted else without_references(saved)


def without_references(lines: Sequence[str]) -> list[str]:
    """Return the overrides of which OmegaConf computes no part, such as from the environment or the clock."""
    return [line for line in lines if "${" not in line]


def select_group_choices(saved: Sequence[str]) -> list[str]:
    """Return the overrides that choose config groups of this project, and a plain `name=`."""
    plain = re.compile(r"name=[\w.=+-]+", re.ASCII)
    return [s for s in saved if plain.fullmatch(s) or s.lstrip("+~").partition("=")[0] in list_groups()]


def read_run_overrides(run: RunDir) -> list[str]:
    """Return the overrides in the run folder that apply to the run rather than to one command.

    Raises CheckpointError: overrides.txt can't be read. Raises ConfigError: a line does not name a choice of this project, as
    `cluster=../../x`, which would compose a file from anywhere.
    """
    lines = [quote_value(line) for line in read_overrides(run) if not NOT_SAVED.match(line)]
    choices, wrong = list_groups(), []
    for line in lines:
        override = _parse(line, str(run.overrides))
        sweep, names = override.is_sweep_override(), choices.get(override.key_or_group)
        value = None if sweep or names is None else override.value()
        values = value if isinstance(value, list) else [value]  # loggers=[wandb,mlflow]
        if sweep or override.package or not all(v is None or str(v) in (names or ()) for v in values):
            wrong.append(line)
    if wrong:
        what = "is not a choice of this project, so it is not used."
        raise ConfigError(*(f"{run.overrides}: {line!r} {what}" for line in wrong))
    return lines


def _parse(line: str, where: str) -> Any:
    """Parse one override. Raises ConfigError."""
    if override := parse_override(line):
        return override
    raise ConfigError(f"{where}: {line!r} is not of the form key=value.")


def merge_resumed(tree: Mapping[str, Any], run: RunDir, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the run's frozen configuration with the changes that this command makes.

    `tree` is composed of `overrides`: those of `load_saved_overrides`, then those of this command. A change is a difference between `tree`
    and what the former compose to now. So a default that was edited since the run started does not change the run. Raises ConfigError: a
    key in `FIXED_KEYS` changes, or the run folder brings an untrusted value, see `trust.py`.
    """
    frozen, lines = flatten(read_frozen(run)), read_run_overrides(run)
    saved = lines if list(overrides[: len(lines)]) == lines else without_references(lines)
    # nothing counts as typed if the run folder's own overrides are not where they are expected
    typed = overrides[len(saved) :] if list(overrides[: len(saved)]) == saved else []
    before, after = flatten(compose(saved)), flatten(tree)
    changed = {k: v for k, v in after.items() if k not in before or before[k] != v}
    gone = [k for k in before if k not in after]
    fixed = [k for k in changed if k.startswith(FIXED_KEYS) and k not in COMMAND_KEYS]
    refused = [k for k in fixed if frozen.get(k) != changed[k]]
    # strategies can't read each other's checkpoints if only one of them writes shards, or in another form
    strategies = {frozen.get("strategy.name"), changed.get("strategy.name", frozen.get("strategy.name"))}
    refused += ["strategy.name"] if len(strategies) > 1 and SHARDED_STRATEGIES & strategies else []
    if refused:
        raise _refusal({k: changed[k] for k in refused}, frozen)
    sections = {name for k in frozen for name in accumulate(k.split("."), "{}.{}".format)}
    # keys that did not exist when the run started
    newer = {k: v for k, v in after.items() if k not in sections and k in before}
    merged = newer | {k: v for k, v in frozen.items() if k not in gone and k not in COMMAND_KEYS}
    merged |= changed | {k: after[k] for k in COMMAND_KEYS}
    if not tree["trust"]:
        # this command's own overrides, and of the run folder's only those that choose config groups of this project
        words = [w for w in typed if not w.startswith("-")]
        known = flatten(compose([*select_group_choices(lines), *words]))
        # typed after --, so it is not among the overrides
        known |= {k: changed[k] for k in ("program.command", "program.copied") if k in changed}
        refuse_untrusted(run.path, merged, known)
    return unflatten(merged)


def _refusal(refused: Mapping[str, Any], frozen: Mapping[str, Any]) -> ConfigError:
    why = "{}={} can't be changed by resume= (the run has {}); start a new run instead."
    return ConfigError(*(why.format(key, value, frozen.get(key)) for key, value in refused.items()))


TRAINING_FILES = ("checkpoints", "metrics.csv", "tensorboard", "steps")
"""Files and folders that training writes into a run folder."""


def move_aside(run: RunDir) -> Path | None:
    """Move the results of training into a new folder before-N, and return it, if any."""
    found = [name for name in TRAINING_FILES if (run.path / name).exists()]
    if not found:
        return None
    names = (run.path / f"before-{number}" for number in itertools.count(1))
    folder = claim_part(next(path for path in names if not os.path.lexists(path))).path
    for name in found:
        move(run.path / name, folder / name)
    return folder


def move_back(run: RunDir, folder: Path | None) -> None:
    """Undo `move_aside` after a refused submission."""
    if folder is None:
        return
    for name in TRAINING_FILES:
        if (folder / name).exists():
            move(folder / name, run.path / name)
    remove(part_of_run(folder))


def is_complete(run: RunDir, config: Config) -> bool:
    """Return whether the run is complete, and `config` requests no more training.

    It may not have another program either. Raises CheckpointError: its config.yaml can't be read.
    """
    if run.read_info().get("state") != "completed":
        return False
    frozen, trainer = read_frozen(run), config.trainer
    if config.program:
        return bool(config.program.command == frozen["program"]["command"])
    before = frozen["trainer"]
    first, then = (time and duration_seconds(time) for time in (before["max_time"], trainer.max_time))
    epochs, epochs_now = (None if one == -1 else one for one in (before["max_epochs"], trainer.max_epochs))
    limits = [(before["max_steps"], trainer.max_steps), (first, then), (epochs, epochs_now)]
    limits += [(before.get(k) or 1, getattr(trainer, k) or 1) for k in ("min_epochs", "min_steps")]
    longer = any(had is not None and (has is None or has > had) for had, has in limits)
    return not longer and before["early_stopping"] == vars(trainer.early_stopping)


def completion_message(run: RunDir, config: Config) -> str:
    """Return the message instead of training. Raises CheckpointError: the run's config.yaml can't be read."""
    folder, before = display_path(run.path), read_frozen(run)["trainer"]
    if config.program:
        return f"{folder} is complete. To start a new run: {train_command('run.py')} -- {printable(shlex.join(config.program.command))}"
    message = f"{folder} is complete: nothing is left to train."
    if not config.trainer.fast_dev_run:
        limits = {key: before[key] for key in ("max_epochs", "max_steps") if (before[key] or 0) > 0}
        more = " ".join(f"trainer.{key}={2 * limit}" for key, limit in limits.items())
        more += " trainer.max_time=null" if before["max_time"] else ""
        message += f" To train longer: {train_command()} resume={shlex.quote(folder)} {more}"
    return f"{fit(message, terminal_width())}\n{format_summary(run, config)}"
