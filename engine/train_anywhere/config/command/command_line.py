"""The command line before Hydra reads it: flags and overrides in any order."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from train_anywhere.config.command.compose import CONFIGS, groups
from train_anywhere.config.command.yaml_files import read_mapping
from train_anywhere.config.open_groups import CHOSEN, CUSTOM, LISTED, TARGET
from train_anywhere.config.signatures import TargetError, read
from train_anywhere.errors import ConfigError, ProjectError

if TYPE_CHECKING:
    from argparse import ArgumentParser


HYDRA_FOLDERS = ("hydra.run.", "hydra.job.chdir", "hydra.output_subdir")
"""Keys of Hydra's own output folders, which this project does not use."""


SEARCH = "hydra/sweeper=optuna"
"""The sweeper whose members are proposed by results; of intervals too."""


SEARCH_KEYS = ("n_trials", "n_jobs", "study_name", "sampler", "pruner", "params")
"""The keys of that sweeper, as `train_anywhere.plugins.register` gives them to Hydra."""

NAMED = (*CHOSEN, "strategy")
"""Groups whose key `name` is no choice."""


@dataclass(frozen=True)
class CommandLine:
    """What was typed.

    Attributes:
        overrides: `key=value` and the like.
        flags: `-m`, `--cfg job` and the like, each with its value.
    """

    overrides: list[str]
    flags: list[str]


def opened(words: Sequence[str]) -> list[str]:
    """Overrides as Hydra takes them where a key need not be in a file: arguments of a target (`task.hidden=64` as `++task.hidden=64`).

    A target that is typed begins without the arguments of the one in the chosen file: `data._target_=mine.rows` stands for
    `data=custom` too. `init=RUN` stands for `init.run=RUN`. A task with a train_dataloader of its own stands for `data=module` too, if
    no data is named.
    """
    words = [f"init.run={word.removeprefix('init=')}" if word.startswith("init=") else word for word in words]
    typed = [word.lstrip("+").partition("=")[0] for word in words]
    begun = [g for g in CHOSEN if any(k.startswith(f"{g}.{TARGET}") for k in typed) and g not in typed]
    sections = tuple(f"{group}." for group in (*CHOSEN, *LISTED))
    added = [f"++{w}" if w.startswith(sections) and "=" in w else w for w in words]
    named = any(key in ("data", "experiment", "resume") or key.startswith(f"data.{TARGET}") for key in typed)
    own = ["data=module"] if not named and _brings_loaders(words) else []
    return [*own, *(f"{group}={CUSTOM}" for group in begun), *added]


def _brings_loaders(words: Sequence[str]) -> bool:
    """Return whether the task that the words name is a LightningModule with a train_dataloader, as far as its source says."""
    given = dict(word.lstrip("+").partition("=")[::2] for word in words)
    dotted = given.get(f"task.{TARGET}") or given.get(f"task.{TARGET}.lightning")
    with suppress(ConfigError, TargetError, OSError):
        if dotted is None and "task" in given:
            target = read_mapping(CONFIGS / "task" / f"{given['task']}.yaml").get(TARGET)
            dotted = target.get("lightning") if isinstance(target, dict) else target
        inherited = ("lightning.pytorch.core.", "pytorch_lightning.core.")
        return dotted is not None and not read(f"{dotted}.train_dataloader").name.startswith(inherited)
    return False


def here() -> None:
    """Raise ProjectError if the current folder was deleted: relative paths would mean nothing."""
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise ProjectError("the current folder was deleted: cd to one that exists.") from error


def split(arguments: Sequence[str]) -> CommandLine:
    """Separate flags from overrides; Hydra itself accepts overrides on one side of the flags only.

    Raises:
        ConfigError: a flag is unknown or can't be used here, or an argument is not UTF-8.
    """
    _refuse_bytes(arguments)
    parser = _parser()
    parsed = parser.parse_intermixed_args(list(arguments))
    if problems := [
        *_flag_problems(vars(parsed)),
        *_folder_problems(parsed.overrides),
        *_name_problems(parsed.overrides),
        *_search_problems(parsed.overrides, parsed.multirun),
        *_sweeper_problems(parsed.overrides),
    ]:
        raise ConfigError(*problems)
    flags, overrides = [], list(parsed.overrides)
    waiting = list(overrides)
    for argument in arguments:
        if waiting and argument == waiting[0]:
            waiting.pop(0)
        elif argument != "--":
            flags.append(argument)
    return CommandLine(overrides, flags)


def _parser() -> "ArgumentParser":
    from hydra._internal.utils import get_args_parser

    parser = get_args_parser()
    parser.error = _refuse  # type: ignore[method-assign]
    return parser


def _refuse(message: str) -> NoReturn:
    unknown = message.removeprefix("unrecognized arguments: ")
    if unknown == message:
        raise ConfigError(f"{message}; see --help.")
    raise ConfigError(*[_unknown_flag(flag) for flag in unknown.split(" ")])


def _unknown_flag(flag: str) -> str:
    key = flag.lstrip("-")
    if "=" in key or "." in key:
        return f"'{flag}': a key is given without dashes; use {key}{'' if '=' in key else '=VALUE'}."
    return f"'{flag}' is not a flag of this program; see --help."


def _flag_problems(given: dict[str, object]) -> list[str]:
    problems = []
    if given["run"]:
        problems.append(
            "--run RUNDIR takes no other arguments: a job starts its ranks with it; leave --run out."
        )
    if given["experimental_rerun"]:
        problems.append("--experimental-rerun is not supported; use resume=RUN.")
    if given["package"] and not given["cfg"]:
        problems.append("--package needs --cfg; use --cfg job --package optimizer.")
    folder = given["config_dir"]
    if folder and not Path(str(folder)).expanduser().is_dir():
        problems.append(f"--config-dir={folder} is not a folder.")
    return problems


def _folder_problems(overrides: Sequence[str]) -> list[str]:
    return [
        f"'{o}' sets a folder of Hydra's own, which this project does not use; use paths.results=DIR."
        for o in overrides
        if o.lstrip("+~").startswith(HYDRA_FOLDERS)
    ]


def _name_problems(overrides: Sequence[str]) -> list[str]:
    """`model.name=resnet18` would change a name alone."""
    words = [override.lstrip("+").partition("=") for override in overrides]
    return [
        f"'{key}={value}' chooses nothing, it is a name; use {group}={value}."
        for key, _, value in words
        if (group := key.removesuffix(".name")) in NAMED and key != group and value in groups()[group]
    ]


def _search_problems(overrides: Sequence[str], sweep: bool) -> list[str]:
    if sweep or SEARCH not in overrides:
        return []
    return [
        f"{SEARCH} trains several times: add -m, and give a key several values, such as 'optimizer.lr=interval(0.001,0.1)'."
    ]


def _sweeper_problems(overrides: Sequence[str]) -> list[str]:
    """Keys of `hydra.sweeper` that this sweeper does not have: Hydra would advise to add them, and then nothing would read them."""
    head = "hydra.sweeper."
    given = [word.lstrip("+~").partition("=")[0] for word in overrides]
    keys = [key.removeprefix(head) for key in given if key.startswith(head)]
    if SEARCH not in overrides:
        others = any(word.startswith("hydra/sweeper=") for word in overrides)
        return [] if others else [f"'{head}{key}' is of {SEARCH}; add that, and -m." for key in keys]
    known = ", ".join(SEARCH_KEYS)
    return [
        f"'{head}{key}' is not a key of {SEARCH}, which has {known}; what is best say checkpoint.monitor and checkpoint.mode."
        for key in keys
        if key not in SEARCH_KEYS and not key.startswith("params.")
    ]


def _refuse_bytes(arguments: Sequence[str]) -> None:
    odd = [a for a in arguments if not a.isascii() and a != a.encode("utf-8", "replace").decode()]
    if odd:
        raise ConfigError(
            *[
                f"the argument '{a.encode('utf-8', 'backslashreplace').decode()}' is not UTF-8; "
                "type it in a terminal whose encoding is UTF-8."
                for a in odd
            ]
        )
