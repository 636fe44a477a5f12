"""From a command line to a search: everything is checked, then the study is opened and carried out."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override

from train_anywhere.config.command.members import each_once
from train_anywhere.config.limits import MOST
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError, ProjectError
from train_anywhere.search.cluster_trials import Cluster
from train_anywhere.search.local_trials import Here
from train_anywhere.search.loop import Compose, Search, Where
from train_anywhere.search.space import Space, space_of
from train_anywhere.search.study import PRUNERS, SAMPLERS, Study, Wanted, begin, discard, folder_of

NEW = Path("new")


def search(
    overrides: Sequence[Override], options: Mapping[str, Any], compose: Compose, submits: bool
) -> None:
    """Search until all trials are done.

    Args:
        overrides: what was typed, and `hydra.sweeper.params`.
        options: the other keys of `hydra.sweeper`.
        compose: of Hydra.
        submits: whether trials are jobs.

    Raises:
        ProjectError: a refusal; nothing was written.
        Interrupted: Ctrl-C; the same command goes on.
    """
    if problems := option_problems(options):
        raise ConfigError(*problems)
    space = space_of(overrides)
    first = checked(space, compose, where_of(submits, NEW, options))
    if first.dry_run:
        return
    arguments = sorted(o.input_line or "" for o in overrides)
    folder = folder_of(Path(first.paths.results), first.name, arguments, options["study_name"])
    new = not folder.exists()
    begin(folder, arguments, options["n_trials"])
    try:
        study = Study(folder, wanted_of(first, options), space)
        Search(study, where_of(submits, folder, options), compose).run()
    except ProjectError:
        if new and not any(folder.parent.glob(f"{folder.name}-*")):
            discard(folder)
        raise


def option_problems(options: Mapping[str, Any]) -> list[str]:
    """What is wrong with the keys of `hydra.sweeper`."""
    problems = [
        f"hydra.sweeper.{key}={options[key]} is not a whole number from 1."
        for key in ("n_trials", "n_jobs")
        if not isinstance(options[key], int)
        or isinstance(options[key], bool)
        or not 1 <= options[key] <= MOST
    ]
    known = {"sampler": [*SAMPLERS], "pruner": [*PRUNERS]}
    problems += [
        f"hydra.sweeper.{key}={options[key]} is not known; use one of {', '.join(names)}."
        for key, names in known.items()
        if options[key] not in names
    ]
    name = options["study_name"]
    if name is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._=+-]{0,80}", str(name)):
        problems.append(
            f"hydra.sweeper.study_name={name} can't name a folder: use letters, digits and . _ - = + only."
        )
    return problems


def where_of(submits: bool, folder: Path, options: Mapping[str, Any]) -> Where:
    """What begins the trials of the study in `folder`."""
    if submits:
        return Cluster(folder / "code", folder.parent.parent, options["n_trials"])
    return Here(options["n_jobs"])


def checked(space: Space, compose: Compose, where: Where) -> Config:
    """The configuration of the trial with all lowest values; that with the highest is checked too. A dry run prints the first.

    Raises:
        ConfigError: with all that is wrong with them.
    """
    configs: list[Config] = []
    wrong: list[tuple[str, list[str]]] = []
    for words in space.ends():
        try:
            configs.append(where.check(compose(words), words))
        except ConfigError as error:
            wrong.append((" ".join(w.lstrip("+") for w in words if w not in space.fixed), error.problems))
    if wrong:
        raise ConfigError(*each_once(wrong, len(space.ends())))
    config = configs[0]
    if config.resume or config.after:
        raise ConfigError(
            "hydra/sweeper=optuna begins runs of its own, one by the results of others: leave resume= and after= out. The same command "
            "goes on with a study that was interrupted."
        )
    if config.checkpoint.monitor is None or config.checkpoint.mode is None:
        raise ConfigError(
            "hydra/sweeper=optuna judges trials by checkpoint.monitor, and this task names no metric; add checkpoint.monitor=NAME "
            "checkpoint.mode=min or max."
        )
    if config.dry_run:
        drawn = "\n".join(f"{key:<18}{distribution}" for key, distribution in space.drawn.items())
        judged = f"Searched, by {config.checkpoint.monitor} ({config.checkpoint.mode}):"
        print(f"{where.shown(config)}\n\n{judged}\n{drawn}\n\ndry run: nothing was written or submitted.")
    return config


def wanted_of(config: Config, options: Mapping[str, Any]) -> Wanted:
    """What the study is to do."""
    return Wanted(
        trials=options["n_trials"],
        at_once=options["n_jobs"],
        sampler=options["sampler"],
        pruner=options["pruner"],
        seed=config.seed,
        metric=str(config.checkpoint.monitor),
        mode=str(config.checkpoint.mode),
    )
