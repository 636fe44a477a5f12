"""The loop that runs several trials at once until all are done."""

import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from optuna.trial import FrozenTrial, Trial, TrialState

from train_anywhere.config.schema import Config
from train_anywhere.errors import ProjectError, SubmitError, SubmitInterrupted
from train_anywhere.files import ROOT
from train_anywhere.files.terminal.printable import printable
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.summary import command_path, display_path
from train_anywhere.search.study import Study
from train_anywhere.slurm.status.best import best_value, metric_values


def format_table(study: Study) -> str:
    """Return a line for each trial, and the next command."""
    trials = sorted(study.trials, key=lambda trial: _sort_key(trial, study.settings.mode))
    keys = list(study.space.distributions)
    lines = [["trial", study.settings.metric, *keys]]
    lines += [
        [str(t.number), _format_result(t), *(format_value(t.params.get(k)) for k in keys)] for t in trials
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines]
    end = [f"Study:       {display_path(study.folder)}", f"Next:        {_next_command(study)}"]
    return printable("\n".join([*rows, "", *end]))


def format_value(value: object) -> str:
    """Format the value of a hyperparameter."""
    return f"{value:.4g}" if isinstance(value, float) else "-" if value is None else str(value)


def _sort_key(trial: FrozenTrial, mode: str) -> tuple[bool, float, int]:
    value = trial.value if trial.state == TrialState.COMPLETE and trial.value is not None else None
    return value is None, (value or 0.0) * (1 if mode == "min" else -1), trial.number


def _format_result(trial: FrozenTrial) -> str:
    if trial.state == TrialState.COMPLETE and trial.value is not None:
        return f"{trial.value:.6g}"
    return {TrialState.PRUNED: "pruned", TrialState.RUNNING: "running"}.get(trial.state, "failed")


def _next_command(study: Study) -> str:
    """Return the command `jobs.py best` of this study, which prints how to train the best trial again."""
    results = study.folder.parent.parent
    there = "" if results == ROOT / "results" else f" --results {shlex.quote(display_path(results))}"
    program = f"{command_path('python')} {shlex.quote(display_path(ROOT / 'src' / 'jobs.py'))}"
    return f"{program} best {study.folder.name}{there}"


RESUMABLE = ("preempted", "node_fail", "boot_fail", "lost")
"""States of a trial that is resumed, because something else stopped it."""

MAX_TRIES = 3
"""Maximum number of times that a trial is started."""

MAX_FAILURES = 3
"""Give up after this many failed trials without a complete one: the cause is not the trial."""

Compose = Callable[[Sequence[str]], Mapping[str, Any]]
"""A function that composes a configuration from overrides."""


class TrialRunner(Protocol):
    """The interface of `local_trials.LocalTrials` and `cluster_trials.ClusterTrials`, which start trials."""

    pause: float

    def check(self, tree: Mapping[str, Any], words: Sequence[str]) -> Config:
        """Return the configuration of a trial. Raises ConfigError."""

    def format_dry_run(self, config: Config) -> str:
        """Return the lines that a dry run prints."""

    def start(self, config: Config, words: Sequence[str], folder: Path) -> str:
        """Start a trial in a new run folder; return its job or process for the log."""

    def resume(self, run: RunDir) -> str:
        """Resume a trial; return its job or process for the log."""

    def read_ended(self, live: Sequence[RunDir]) -> dict[str, str]:
        """Return the states of the trials that have ended, by run id."""

    def stop(self, run: RunDir) -> None:
        """Signal a trial to save a checkpoint and stop."""

    def handle_interrupt(self, live: Sequence[RunDir]) -> str:
        """Handle Ctrl-C, and return what happens to the live trials."""


class Search:
    """A running study. `compose` is Hydra's function to compose a configuration."""

    def __init__(self, study: Study, runner: TrialRunner, compose: Compose) -> None:
        self.study, self.runner, self.compose = study, runner, compose
        self.live: dict[int, RunDir] = {}
        self.tries: dict[int, int] = {}
        self.trials: dict[int, Trial] = {}
        self.seen: dict[int, int] = {}
        self.pruned: dict[int, str] = {}

    def run(self) -> None:
        """Start trials, wait for them, report their results to the study, and print the table at the end.

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
            message = self.runner.handle_interrupt([*self.live.values()])
            message += f" The same command resumes {self.study.folder}."
            raise SubmitInterrupted(f"interrupted; {message}") from None
        print(f"\n{format_table(self.study)}", flush=True)

    def _rejoin(self) -> None:
        """Find the trials of an earlier start that have not ended."""
        for number in self.study.list_running():
            run = RunDir(self.study.run_folder(number))
            if run.config.is_file():
                self.live[number] = run
            else:
                self.study.tell(number, None)  # interrupted before it was started
        if self.study.trials:
            done = len(self.study.trials) - len(self.live)
            total, running = self.study.settings.trials, len(self.live)
            self._print(f"resumed: {done} of {total} trials are done, {running} were running")

    def _start_trial(self) -> None:
        trial = self.study.ask()
        number, params = trial.number, trial.params
        words = self.study.words(params)
        shown = " ".join(f"{key}={format_value(value)}" for key, value in params.items())
        try:
            config = self.runner.check(self.compose(words), words)
            process = self.runner.start(config, words, self.study.run_folder(number))
        except ProjectError as error:
            self._handle_refusal(number, shown, error)
            return
        self.live[number], self.trials[number] = RunDir(self.study.run_folder(number)), trial
        self._print(f"trial {number}  {shown}  {process}")

    def _handle_refusal(self, number: int, shown: str, error: ProjectError) -> None:
        """Record a trial with invalid values as failed; raise other errors, such as of the scheduler, which all trials would get."""
        if not self.study.run_folder(number).exists():
            self.study.tell(number, None)
        if not hasattr(error, "problems"):
            raise error
        self._print(f"trial {number}  {shown}  refused: {error}")
        self._refuse_if_all_fail()

    def _report_ended(self) -> None:
        """Report trials that have ended to the study, and resume those that something else stopped."""
        numbers = {run.id: number for number, run in self.live.items()}
        for name, state in self.runner.read_ended([*self.live.values()]).items():
            number = numbers[name]
            run = self.live.pop(number)
            self.tries[number] = self.tries.get(number, 1) + 1
            if number in self.pruned and state != "completed":
                run.update(state="cancelled", why=self.pruned[number])
                self._finish_trial(number, run, "pruned")
            elif state in RESUMABLE and self.tries[number] <= MAX_TRIES:
                self._print(f"trial {number}  {state}: resumed as {self.runner.resume(run)}")
                self.live[number] = run
            else:
                self._finish_trial(number, run, state)

    def _finish_trial(self, number: int, run: RunDir, state: str) -> None:
        settings = self.study.settings
        value = best_value(run, settings.metric, settings.mode) if state == "completed" else None
        self.study.tell(number, value, TrialState.PRUNED if state == "pruned" else TrialState.COMPLETE)
        result = "" if value is None else f"  {settings.metric} {value:.6g}"
        self._print(f"trial {number}  {state}{result}")
        if value is None and state != "pruned":
            self._refuse_if_all_fail()

    def _prune_trials(self) -> None:
        """Stop trials that are worse than earlier ones; only those that this process has started."""
        if self.study.settings.pruner == "none":
            return
        for number, run in self.live.items():
            if number in self.trials and number not in self.pruned and self._should_prune(number, run):
                self.runner.stop(run)
                self._print(f"trial {number}  is stopped: {self.pruned[number]}")

    def _should_prune(self, number: int, run: RunDir) -> bool:
        """Report the new values of a trial to Optuna, and return whether to prune it."""
        trial, curve = self.trials[number], metric_values(run, self.study.settings.metric)
        for at, (_, value) in enumerate(curve, 1):
            if at <= self.seen.get(number, 0) or value != value:  # nan
                continue
            self.seen[number] = at
            trial.report(value, at)
            if trial.should_prune():
                name = self.study.settings.metric
                self.pruned[number] = (
                    f"pruned at its validation {at}: {name} {value:.6g} is worse than the median of the trials before."
                )
                return True
        return False

    def _refuse_if_all_fail(self) -> None:
        states = [t.state for t in self.study.trials]
        if (
            states.count(TrialState.FAIL) >= MAX_FAILURES
            and TrialState.COMPLETE not in states
            and not self.live
        ):
            failed = self.study.run_folder(0)
            raise SubmitError(
                f"the first {len(states)} trials have failed, so no other one is started: look at one of them ({failed}), "
                "and start a new study."
            )

    def _print(self, what: str) -> None:
        print(f"{self.study.folder.name}  {what}", flush=True, file=sys.stdout)
