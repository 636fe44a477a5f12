"""Several trials at once, until all are done."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from optuna.trial import Trial, TrialState

from train_anywhere.config.schema import Config
from train_anywhere.errors import Interrupted, ProjectError, SubmitError
from train_anywhere.runs.folder import RunDir
from train_anywhere.search.study import Study
from train_anywhere.search.trial_table import short, table
from train_anywhere.slurm.status.best import reached, values

AGAIN = ("preempted", "node_fail", "boot_fail", "lost")
"""States of a trial that is begun again: what ended it was not the trial."""

TRIES = 3
"""How often a trial is begun, at most."""

HOPELESS = 3
"""So many failed trials, and no other one: what fails is not the trial."""

Compose = Callable[[Sequence[str]], Mapping[str, Any]]
"""From overrides to a composed configuration."""


class Where(Protocol):
    """What begins trials: `train_anywhere.search.local_trials.Here`, `train_anywhere.search.cluster_trials.Cluster`."""

    pause: float

    def check(self, tree: Mapping[str, Any], words: Sequence[str]) -> Config:
        """The configuration of a trial. Raises ConfigError."""

    def shown(self, config: Config) -> str:
        """What a dry run prints."""

    def begin(self, config: Config, words: Sequence[str], folder: Path) -> str:
        """Begin a trial in a new run folder; returns where."""

    def again(self, run: RunDir) -> str:
        """Go on with a trial; returns where."""

    def ended(self, live: Sequence[RunDir]) -> dict[str, str]:
        """The states of those that have ended, by id."""

    def stop(self, run: RunDir) -> None:
        """Ask a trial to save and stop."""

    def interrupted(self, live: Sequence[RunDir]) -> str:
        """What becomes of them after Ctrl-C."""


class Search:
    """A study that is carried out.

    Args:
        compose: of Hydra.
    """

    def __init__(self, study: Study, where: Where, compose: Compose) -> None:
        self.study, self.where, self.compose = study, where, compose
        self.live: dict[int, RunDir] = {}
        self.tries: dict[int, int] = {}
        self.asked: dict[int, Trial] = {}
        self.seen: dict[int, int] = {}
        self.pruned: dict[int, str] = {}

    def run(self) -> None:
        """Begin trials, wait for them, tell the study; then print the table.

        Raises:
            Interrupted: Ctrl-C; the same command goes on.
            SubmitError: all of the first trials have failed.
            ProjectError: a trial could not be submitted; the study is kept.
        """
        try:
            self._rejoin()
            while self.live or self.study.left > 0:
                self._tell()
                self._watch()
                while len(self.live) < self.study.wanted.at_once and self.study.left > 0:
                    self._begin()
                if self.live:
                    time.sleep(self.where.pause)
        except KeyboardInterrupt:
            said = self.where.interrupted([*self.live.values()])
            raise Interrupted(
                f"interrupted; {said} The same command goes on with {self.study.folder}."
            ) from None
        print(f"\n{table(self.study)}", flush=True)

    def _rejoin(self) -> None:
        """Trials of an earlier start that have no end yet."""
        for number in self.study.running():
            run = RunDir(self.study.run_folder(number))
            if run.config.is_file():
                self.live[number] = run
            else:
                self.study.tell(number, None)  # interrupted before it was begun
        if self.study.trials:
            done = len(self.study.trials) - len(self.live)
            self._say(
                f"goes on: {done} of {self.study.wanted.trials} trials are done, {len(self.live)} were running"
            )

    def _begin(self) -> None:
        trial = self.study.ask()
        number, drawn = trial.number, trial.params
        words = self.study.words(drawn)
        shown = " ".join(f"{key}={short(value)}" for key, value in drawn.items())
        try:
            config = self.where.check(self.compose(words), words)
            said = self.where.begin(config, words, self.study.run_folder(number))
        except ProjectError as error:
            self._could_not_begin(number, shown, error)
            return
        self.live[number], self.asked[number] = RunDir(self.study.run_folder(number)), trial
        self._say(f"trial {number}  {shown}  {said}")

    def _could_not_begin(self, number: int, shown: str, error: ProjectError) -> None:
        """A trial that is refused for its values has failed; where the scheduler refuses, no other one would do better."""
        if not self.study.run_folder(number).exists():
            self.study.tell(number, None)
        if not hasattr(error, "problems"):
            raise error
        self._say(f"trial {number}  {shown}  refused: {error}")
        self._refuse_hopeless()

    def _tell(self) -> None:
        """The study learns what has ended."""
        numbers = {run.id: number for number, run in self.live.items()}
        for name, state in self.where.ended([*self.live.values()]).items():
            number = numbers[name]
            run = self.live.pop(number)
            self.tries[number] = self.tries.get(number, 1) + 1
            if number in self.pruned and state != "completed":
                run.update(state="cancelled", why=self.pruned[number])
                self._told(number, run, "pruned")
            elif state in AGAIN and self.tries[number] <= TRIES:
                self._say(f"trial {number}  {state}: goes on as {self.where.again(run)}")
                self.live[number] = run
            else:
                self._told(number, run, state)

    def _told(self, number: int, run: RunDir, state: str) -> None:
        wanted = self.study.wanted
        value = reached(run, wanted.metric, wanted.mode) if state == "completed" else None
        self.study.tell(number, value, TrialState.PRUNED if state == "pruned" else TrialState.COMPLETE)
        self._say(f"trial {number}  {state}" + ("" if value is None else f"  {wanted.metric} {value:.6g}"))
        if value is None and state != "pruned":
            self._refuse_hopeless()

    def _watch(self) -> None:
        """Stop trials that do worse than others did; only those that this process has begun."""
        if self.study.wanted.pruner == "none":
            return
        for number, run in self.live.items():
            if number in self.asked and number not in self.pruned and self._is_hopeless(number, run):
                self.where.stop(run)
                self._say(f"trial {number}  is stopped: {self.pruned[number]}")

    def _is_hopeless(self, number: int, run: RunDir) -> bool:
        """Show Optuna what a trial has measured since it was last looked at, and ask."""
        trial, curve = self.asked[number], values(run, self.study.wanted.metric)
        for at, (_, value) in enumerate(curve, 1):
            if at <= self.seen.get(number, 0) or value != value:
                continue
            self.seen[number] = at
            trial.report(value, at)
            if trial.should_prune():
                name = self.study.wanted.metric
                self.pruned[number] = (
                    f"pruned at its validation {at}: {name} {value:.6g} is worse than the median of the trials before."
                )
                return True
        return False

    def _refuse_hopeless(self) -> None:
        states = [t.state for t in self.study.trials]
        if states.count(TrialState.FAIL) >= HOPELESS and TrialState.COMPLETE not in states and not self.live:
            failed = self.study.run_folder(0)
            raise SubmitError(
                f"the first {len(states)} trials have failed, so no other one is begun: look at one of them ({failed}), "
                "and begin a new study."
            )

    def _say(self, what: str) -> None:
        print(f"{self.study.folder.name}  {what}", flush=True, file=sys.stdout)
