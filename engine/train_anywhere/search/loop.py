"""Start a search: check its trials and settings, then run them until all are done."""

import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from optuna.trial import FrozenTrial, Trial, TrialState

from train_anywhere.config.command.members import merge_problems
from train_anywhere.config.limits import MAX_COUNT
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError, ProjectError, SubmitError, SubmitInterrupted, listed
from train_anywhere.files import ROOT
from train_anywhere.files.removal import remove
from train_anywhere.files.terminal.printable import printable
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.summary import display_path, train_command
from train_anywhere.search.study import (
    PRUNERS,
    SAMPLERS,
    Settings,
    Space,
    Study,
    find_folder,
    make_folder,
    make_space,
    owned_folder,
)
from train_anywhere.search.trials import ClusterTrials, LocalTrials
from train_anywhere.slurm.status.best import best_value, metric_values
from train_anywhere.slurm.status.text_page import align_columns

RESUMABLE = ("preempted", "node_fail", "boot_fail", "lost")
"""States of a trial that is resumed, because something else stopped it."""

MAX_STARTS = 3
"""Maximum number of times that a trial is started."""

MAX_FAILURES = 3
"""Give up after this many failed trials without a complete one: the cause is not the trial."""

Compose = Callable[[Sequence[str]], Mapping[str, Any]]
"""A function that composes a configuration from overrides."""


def search(
    overrides: Sequence[Override], options: Mapping[str, Any], compose: Compose, submits: bool
) -> None:
    """Check the trials, then run them until all are done. A dry run only checks and prints them.

    `overrides` are those of the command line and of `hydra.sweeper.params`, and `options` the other keys. Hydra's function `compose`
    makes a configuration. With `submits` trials are jobs.

    Raises:
        ProjectError: a refusal. A new study is removed if it has no run folder yet; any other study is kept.
        SubmitInterrupted: Ctrl-C; the same command resumes the study.
    """
    if problems := option_problems(options):
        raise ConfigError(*problems)
    space = make_space(overrides)
    runner = ClusterTrials(options["n_trials"]) if submits else LocalTrials(options["n_jobs"])
    first = check_trials(space, compose, runner)
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
        Search(Study(folder, settings, space), runner, compose).run()
    except ProjectError:
        if new and not any(folder.parent.glob(f"{folder.name}-*")):
            remove(owned_folder(folder))
        raise


def option_problems(options: Mapping[str, Any]) -> list[str]:
    """Return one message for each invalid key of `hydra.sweeper`."""
    problems = [
        f"hydra.sweeper.{key}={options[key]} is not a whole number from 1 to {MAX_COUNT}."
        for key in ("n_trials", "n_jobs")
        if type(options[key]) is not int or not 1 <= options[key] <= MAX_COUNT
    ]
    known = {"sampler": [*SAMPLERS], "pruner": [*PRUNERS]}
    problems += [
        f"hydra.sweeper.{key}={options[key]} is not known; use one of {listed(names)}."
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


def check_trials(space: Space, compose: Compose, runner: LocalTrials | ClusterTrials) -> Config:
    """Check the trials with all lowest and all highest values, and return the first.

    A dry run also prints the first trial and the searched keys. Raises ConfigError if a trial has problems, uses resume= or after=, or has
    no metric for comparing trials.
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
        compared = f"{config.checkpoint.monitor} ({config.checkpoint.mode})"
        print(f"{runner.format_dry_run(config)}\n\nSearched keys; trials are compared by {compared}:")
        print(f"{rows}\n\ndry run: nothing was written or submitted.")
    return config


@dataclass
class LiveTrial:
    """A trial that has not ended.

    Attributes:
        trial: Optuna's trial; None if an earlier process has started it, so that it is not pruned.
        reported: number of values that were reported to Optuna.
        pruned: why it is stopped; empty if it is not.
    """

    run: RunDir
    trial: Trial | None = None
    starts: int = 1
    reported: int = 0
    pruned: str = ""


class Search:
    """A running study. `compose` is Hydra's function to compose a configuration."""

    def __init__(self, study: Study, runner: LocalTrials | ClusterTrials, compose: Compose) -> None:
        self.study, self.runner, self.compose = study, runner, compose
        self.live: dict[int, LiveTrial] = {}

    def run(self) -> None:
        """Start trials, report their results to the study, and print the table.

        Raises:
            SubmitInterrupted: Ctrl-C; the same command resumes the study.
            SubmitError: all of the first trials have failed.
            ProjectError: a trial could not be submitted; the study is kept.
        """
        try:
            self._rejoin()
            while self.live or self.study.remaining > 0:
                self._report_ended()
                self._prune_trials()
                while len(self.live) < self.study.settings.at_once and self.study.remaining > 0:
                    self._start_trial()
                if self.live:
                    time.sleep(self.runner.pause)
        except KeyboardInterrupt:
            message = self.runner.handle_interrupt([one.run for one in self.live.values()])
            message += f" The same command resumes {self.study.folder}."
            raise SubmitInterrupted(f"interrupted; {message}") from None
        print(f"\n{format_table(self.study)}", flush=True)

    def _rejoin(self) -> None:
        """Find the trials of an earlier start that have not ended."""
        trials = self.study.trials
        for number in [t.number for t in trials if t.state == TrialState.RUNNING]:
            run = RunDir(self.study.run_folder(number))
            if run.config.is_file():
                self.live[number] = LiveTrial(run)
            else:
                self.study.tell(number, None)  # interrupted before it was started
        if trials:
            done, total = len(trials) - len(self.live), self.study.settings.trials
            self._print(f"resumed: {done} of {total} trials are done, {len(self.live)} were running")

    def _start_trial(self) -> None:
        """Start a trial. Invalid values are a failed one, other errors are raised."""
        trial = self.study.ask()
        folder, words = self.study.run_folder(trial.number), self.study.space.words(trial.params)
        values = " ".join(f"{key}={format_value(value)}" for key, value in trial.params.items())
        shown = f"trial {trial.number}  {values}"
        try:
            config = self.runner.check(self.compose(words), words)
            process = self.runner.start(config, words, folder)
        except ProjectError as error:
            if not folder.exists():
                self.study.tell(trial.number, None)
            if not isinstance(error, ConfigError):
                raise
            self._print(f"{shown}  refused: {error}")
            self._refuse_if_all_fail()
            return
        self.live[trial.number] = LiveTrial(RunDir(folder), trial)
        self._print(f"{shown}  {process}")

    def _report_ended(self) -> None:
        """Report trials that have ended to the study, and resume those that something else stopped."""
        numbers = {one.run.id: number for number, one in self.live.items()}
        for name, state in self.runner.read_ended([one.run for one in self.live.values()]).items():
            number = numbers[name]
            one = self.live.pop(number)
            if one.pruned and state != "completed":
                one.run.update(state="cancelled", why=one.pruned)
                self._finish_trial(number, one.run, "pruned")
            elif state in RESUMABLE and one.starts < MAX_STARTS:
                self._print(f"trial {number}  {state}: resumed as {self.runner.resume(one.run)}")
                one.starts += 1
                self.live[number] = one
            else:
                self._finish_trial(number, one.run, state)

    def _finish_trial(self, number: int, run: RunDir, state: str) -> None:
        settings = self.study.settings
        value = best_value(run, settings.metric, settings.mode) if state == "completed" else None
        self.study.tell(number, value, pruned=state == "pruned")
        result = "" if value is None else f"  {settings.metric} {value:.6g}"
        self._print(f"trial {number}  {state}{result}")
        if value is None and state != "pruned":
            self._refuse_if_all_fail()

    def _prune_trials(self) -> None:
        """Stop trials that are worse than earlier ones."""
        if self.study.settings.pruner == "none":
            return
        for number, one in self.live.items():
            if not one.pruned and self._should_prune(one):
                self.runner.stop(one.run)
                self._print(f"trial {number}  is stopped: {one.pruned}")

    def _should_prune(self, one: LiveTrial) -> bool:
        """Report the new values of a trial to Optuna, and return whether to prune it."""
        metric = self.study.settings.metric
        for at, (_, value) in enumerate(metric_values(one.run, metric) if one.trial else (), 1):
            if at <= one.reported or value != value:  # nan
                continue
            one.reported = at
            assert one.trial
            one.trial.report(value, at)
            if one.trial.should_prune():
                one.pruned = f"pruned at its validation {at}: {metric} {value:.6g} is worse than the median of the trials before."
                return True
        return False

    def _refuse_if_all_fail(self) -> None:
        states = [t.state for t in self.study.trials]
        failed = states.count(TrialState.FAIL) >= MAX_FAILURES and TrialState.COMPLETE not in states
        if failed and not self.live:
            raise SubmitError(
                f"the first {len(states)} trials have failed, so no other one is started: look at one of them "
                f"({self.study.run_folder(0)}), and start a new study."
            )

    def _print(self, what: str) -> None:
        print(f"{self.study.folder.name}  {what}", flush=True)


def format_table(study: Study) -> str:
    """Return a line for each trial, and the next command."""
    keys, sign = [*study.space.distributions], 1 if study.settings.mode == "min" else -1
    values = {t.number: t.value for t in study.trials if t.state == TrialState.COMPLETE}

    def order(trial: FrozenTrial) -> tuple[bool, float, int]:
        value = values.get(trial.number)
        return value is None, sign * (value or 0.0), trial.number

    def result(trial: FrozenTrial) -> str:
        value, others = values.get(trial.number), {TrialState.PRUNED: "pruned", TrialState.RUNNING: "running"}
        return others.get(trial.state, "failed") if value is None else f"{value:.6g}"

    lines = [["trial", study.settings.metric, *keys]]
    for trial in sorted(study.trials, key=order):
        lines.append([str(trial.number), result(trial), *(format_value(trial.params.get(k)) for k in keys)])
    results = study.folder.parent.parent
    there = "" if results == ROOT / "results" else f" --results {shlex.quote(display_path(results))}"
    best = f"{train_command('jobs.py')} best {study.folder.name}{there}"
    end = f"Study:       {display_path(study.folder)}\nNext:        {best}"
    return f"{align_columns(lines)}\n\n{printable(end)}"


def format_value(value: object) -> str:
    """Format the value of a hyperparameter."""
    return f"{value:.4g}" if isinstance(value, float) else "-" if value is None else str(value)
