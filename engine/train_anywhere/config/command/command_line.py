"""Prepare the command line for Hydra: flags and overrides in any order."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

from train_anywhere.config.command.compose import CONFIGS, compose, list_groups, quote_value
from train_anywhere.config.command.yaml_files import read_mapping
from train_anywhere.config.keys import CUSTOM, LIST_GROUPS, SINGLE_GROUPS, TARGET, flatten
from train_anywhere.config.other_names import keys_meant, page_address
from train_anywhere.config.search_terms import find_page
from train_anywhere.config.signatures import TargetError, read
from train_anywhere.errors import ConfigError

SEARCH = "hydra/sweeper=optuna"
"""The sweeper that proposes members by results, and accepts intervals."""

SEARCH_OPTIONS: dict[str, Any] = {
    "n_trials": 20,
    "n_jobs": 1,
    "study_name": None,
    "sampler": "tpe",
    "pruner": "none",
    "params": {},
}
"""The keys of `hydra/sweeper=optuna`, with their defaults."""


class CommandLine(NamedTuple):
    """The arguments of a command. `flags` are `-m`, `--cfg job` and the like, each with its value."""

    overrides: list[str]
    flags: list[str]


def to_hydra_overrides(words: Sequence[str]) -> list[str]:
    """Return the overrides in Hydra's notation, with values in quotes where Hydra needs them.

    An argument of a target, or of a program, need not be in a file: `task.hidden=64` becomes `++task.hidden=64`. A typed target does not
    get the arguments of the file's target: `data._target_=mine.rows` adds `data=custom`. A task with a train_dataloader adds `data=module`
    if no data is named. `init=RUN` becomes `init.run=RUN`.
    """
    words = [f"init.run={word.removeprefix('init=')}" if word.startswith("init=") else word for word in words]
    typed = [word.lstrip("+").partition("=")[0] for word in words]
    targets = [key.partition(f".{TARGET}")[0] for key in typed if f".{TARGET}" in key]
    new_targets = [group for group in SINGLE_GROUPS if group in targets and group not in typed]
    sections = tuple(f"{group}." for group in (*SINGLE_GROUPS, *LIST_GROUPS, "trainer.extra", "args"))
    added = [f"++{w}" if w.startswith(sections) and "=" in w else w for w in words]
    named = any(key in ("data", "experiment", "resume") or key.startswith(f"data.{TARGET}") for key in typed)
    own = ["data=module"] if not named and _task_has_loaders(words) else []
    return [quote_value(w) for w in (*own, *(f"{group}={CUSTOM}" for group in new_targets), *added)]


def _task_has_loaders(words: Sequence[str]) -> bool:
    """Return whether the source of the named task is a LightningModule with a train_dataloader."""
    given = dict(word.lstrip("+").partition("=")[::2] for word in words)
    dotted = given.get(f"task.{TARGET}") or given.get(f"task.{TARGET}.lightning")
    with suppress(ConfigError, TargetError, OSError):
        if dotted is None and "task" in given:
            target = read_mapping(CONFIGS / "task" / f"{given['task']}.yaml").get(TARGET)
            dotted = target.get("lightning") if isinstance(target, dict) else target
        inherited = ("lightning.pytorch.core.", "pytorch_lightning.core.")
        return dotted is not None and not read(f"{dotted}.train_dataloader").name.startswith(inherited)
    return False


def split_flags(arguments: Sequence[str]) -> CommandLine:
    """Separate flags from overrides, which Hydra accepts only before or only after them.

    Raises ConfigError: a flag is unknown or can't be used here, or an argument is not UTF-8.
    """
    odd = [a for a in arguments if not a.isascii() and a != a.encode("utf-8", "replace").decode()]
    if shown := [a.encode("utf-8", "backslashreplace").decode() for a in odd]:
        advice = "type it in a terminal whose encoding is UTF-8."
        raise ConfigError(*(f"the argument '{a}' is not UTF-8; {advice}" for a in shown))
    from hydra._internal.utils import get_args_parser

    parser = get_args_parser()
    parser.error = _refuse  # type: ignore[method-assign]
    parsed = parser.parse_intermixed_args(list(arguments))
    if problems := [*_flag_problems(vars(parsed)), *_override_problems(parsed.overrides, parsed.multirun)]:
        raise ConfigError(*problems)
    flags, overrides = [], list(parsed.overrides)
    waiting = list(overrides)
    for argument in arguments:
        if waiting and argument == waiting[0]:
            waiting.pop(0)
        elif argument != "--":
            flags.append(argument)
    return CommandLine(overrides, flags)


def _refuse(message: str) -> NoReturn:
    unknown = message.removeprefix("unrecognized arguments: ")
    if unknown == message:
        raise ConfigError(f"{message}; see --help.")
    # an override after an unknown flag is in the list too
    flags = [word for word in unknown.split(" ") if word.startswith("-")] or [unknown]
    tree: dict[str, Any] = {}
    with suppress(Exception):  # files of configs/ may be broken: the message about the flag comes first
        tree = compose(())
    raise ConfigError(*(_unknown_flag(flag, tree) for flag in flags))


def _unknown_flag(flag: str, tree: dict[str, Any]) -> str:
    """Return a message with the key that is meant, as in `--nodes 2` or `--dry-run`."""
    name, _, value = flag.lstrip("-").partition("=")
    flat, key = flatten(tree), name.replace("-", "_")
    known = "." in key or key in flat or key in list_groups()
    typed = [
        f"{k}={value or ('true' if isinstance(flat.get(k), bool) else 'VALUE')}"
        for k in ([key] if known else keys_meant(key, tree))
    ]
    if typed:
        return f"'{flag}': a key is given without dashes; use {' or '.join(typed)}."
    page = find_page(key)
    return f"'{flag}' is not a flag of this program; see {page_address(page) if page else '--help'}."


def _flag_problems(given: dict[str, object]) -> Iterator[str]:
    if given["run"]:
        yield "--run RUNDIR takes no other arguments: a job starts its ranks with it; leave --run out."
    if given["experimental_rerun"]:
        yield "--experimental-rerun is not supported; use resume=RUN."
    if given["package"] and not given["cfg"]:
        yield "--package needs --cfg; use --cfg job --package optimizer."
    folder = given["config_dir"]
    if folder and not os.path.isdir(os.path.expanduser(str(folder))):
        yield f"--config-dir={folder} is not a folder."


def _override_problems(overrides: Sequence[str], sweep: bool) -> Iterator[str]:
    """Yield a sentence for each override that would have no effect."""
    for word in overrides:
        if word.lstrip("+~").startswith(("hydra.run.", "hydra.job.chdir", "hydra.output_subdir")):
            yield f"'{word}' sets an output folder of Hydra, which this project does not use; use paths.results=DIR."
    for key, _, value in (word.lstrip("+").partition("=") for word in overrides):
        group = key.removesuffix(".name")
        if group in (*SINGLE_GROUPS, "strategy") and key != group and value in list_groups()[group]:
            yield f"'{key}={value}' changes only a name and selects nothing; use {group}={value}."
    searches, head = SEARCH in overrides, "hydra.sweeper."
    if searches and not sweep:
        yield f"{SEARCH} trains several times: add -m, and give a key several values, such as 'optimizer.lr=interval(0.001,0.1)'."
    others = any(word.startswith("hydra/sweeper=") for word in overrides)
    given = [word.lstrip("+~").partition("=")[0] for word in overrides]
    for key in (key.removeprefix(head) for key in given if key.startswith(head)):
        if not others:
            yield f"'{head}{key}' is a key of {SEARCH}; add that, and -m."
        elif searches and key not in SEARCH_OPTIONS and not key.startswith("params."):
            yield (
                f"'{head}{key}' is not a key of {SEARCH}, which has {', '.join(SEARCH_OPTIONS)}; set the metric with checkpoint.monitor "
                "and checkpoint.mode."
            )
