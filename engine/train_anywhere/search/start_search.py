"""Start a search: check its trials and settings, then open the study and run it."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override

from train_anywhere.config.command.members import merge_problems
from train_anywhere.config.limits import MAX_COUNT
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError, ProjectError
from train_anywhere.search.cluster_trials import ClusterTrials
from train_anywhere.search.local_trials import LocalTrials
from train_anywhere.search.loop import Compose, Search, TrialRunner
from train_anywhere.search.space import Space, make_space
from train_anywhere.search.study import PRUNERS, SAMPLERS, Settings, Study, discard, find_folder, make_folder

NEW_FOLDER = Path("new")
"""Placeholder for the study folder, which does not exist yet when the trials are checked."""


def search(
    overrides: Sequence[Override], options: Mapping[str, Any], compose: Compose, submits: bool
) -> None:
    """Check the trials, then run them until all are done. A dry run only checks and prints them.

    Args:
        overrides: the overrides of the command line and of `hydra.sweeper.params`.
        options: the other keys of `hydra.sweeper`.
        compose: Hydra's function to compose a configuration.
        submits: whether trials are submitted as jobs.

    Raises:
        ProjectError: a refusal. A new study is removed if it has no run folder yet; any other study is kept.
        SubmitInterrupted: Ctrl-C; the same command resumes the study.
    """
    if problems := option_problems(options):
        raise ConfigError(*problems)
    space = make_space(overrides)
    first = check_trials(space, compose, make_runner(submits, NEW_FOLDER, options))
    if first.dry_run:
        return
    arguments = sorted(o.input_line or "" for o in overrides)
    folder = find_folder(Path(first.paths.results), first.name, arguments, options["study_name"])
    new = not folder.exists()
    make_folder(folder, arguments, options["n_trials"])
    settings = Settings(
        trials=options["n_trials"],
        at_once=options["n_jobs"],
        sampler=options["sampler"],
        pruner=options["pruner"],
        seed=first.seed,
        metric=str(first.checkpoint.monitor),
        mode=str(first.checkpoint.mode),
    )
    try:
        Search(Study(folder, settings, space), make_runner(submits, folder, options), compose).run()
    except ProjectError:
        if new and not any(folder.parent.glob(f"{folder.name}-*")):
            discard(folder)
        raise


def option_problems(options: Mapping[str, Any]) -> list[str]:
    """Return one message for each invalid key of `hydra.sweeper`."""
    problems = [
        f"hydra.sweeper.{key}={options[key]} is not a whole number from 1 to {MAX_COUNT}."
        for key in ("n_trials", "n_jobs")
        if not isinstance(options[key], int)
        or isinstance(options[key], bool)
        or not 1 <= options[key] <= MAX_COUNT
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
            f"hydra.sweeper.study_name={name} can't name a folder; use up to 81 letters, digits and . _ - = +, "
            "the first one a letter or digit."
        )
    return problems


def make_runner(submits: bool, folder: Path, options: Mapping[str, Any]) -> TrialRunner:
    """Return the object that starts the trials of the study in `folder`: as jobs if `submits`, else on this machine."""
    if submits:
        return ClusterTrials(folder / "code", folder.parent.parent, options["n_trials"])
    return LocalTrials(options["n_jobs"])


def check_trials(space: Space, compose: Compose, runner: TrialRunner) -> Config:
    """Check two trials, one with all lowest and one with all highest values; return the configuration of the first.

    A dry run also prints the first trial and the searched keys.

    Raises:
        ConfigError: a trial has problems, uses resume= or after=, or has no metric for comparing trials.
    """
    configs: list[Config] = []
    wrong: list[tuple[str, list[str]]] = []
    for overrides in space.extremes():
        try:
            configs.append(runner.check(compose(overrides), overrides))
        except ConfigError as error:
            searched = " ".join(o.lstrip("+") for o in overrides if o not in space.fixed)
            wrong.append((searched, error.problems))
    if wrong:
        raise ConfigError(*merge_problems(wrong, len(space.extremes())))
    config = configs[0]
    if config.resume or config.after:
        raise ConfigError(
            "hydra/sweeper=optuna starts its own runs, so resume= and after= can't be used; leave them out. "
            "To resume an interrupted study, repeat its command."
        )
    if config.checkpoint.monitor is None or config.checkpoint.mode is None:
        raise ConfigError(
            "hydra/sweeper=optuna compares trials by a metric, but checkpoint.monitor or checkpoint.mode is not set; "
            "add checkpoint.monitor=NAME and checkpoint.mode=min (or max)."
        )
    if config.dry_run:
        rows = "\n".join(f"{key:<18}{distribution}" for key, distribution in space.distributions.items())
        title = (
            f"Searched keys; trials are compared by {config.checkpoint.monitor} ({config.checkpoint.mode}):"
        )
        trial = runner.format_dry_run(config)
        print(f"{trial}\n\n{title}\n{rows}\n\ndry run: nothing was written or submitted.")
    return config
