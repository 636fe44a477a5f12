"""A trial of a search: Optuna proposes its values, gets its metrics, and may prune it.

Each trial is a process or a job of its own. All of them write one journal, which is a file on a shared disk, so no process waits for
the others. Optuna takes over the lock of a process that was killed after 30 seconds.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from train_anywhere.config.command.compose import compose
from train_anywhere.config.keys import flatten, unflatten
from train_anywhere.config.load import load
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError, ProjectError
from train_anywhere.features.feature import Feature
from train_anywhere.files.atomic import dumps, read_json, write_atomic
from train_anywhere.runs.facts import best_value, metric_values
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.reopen.frozen import read_frozen, write_frozen
from train_anywhere.runs.reopen.trust import remember
from train_anywhere.runs.study import JOURNAL, MAX_FAILURES, TRIAL, Study, read_study

if TYPE_CHECKING:
    import optuna

POLL_S = 0.5
"""Seconds between two looks at the metrics of a trial that may be pruned."""


class Search(Feature):
    """Take the values of a trial before the ranks start, and record its result after their end."""

    def is_on(self) -> bool:
        """Return whether the run is a trial."""
        return self.config.study is not None

    @contextmanager
    def supervise(self, job: Any) -> Iterator[None]:
        """Write the configuration of the trial, prune it if it is worse than others, and record its end.

        Raises ConfigError: the trial does not start; run.json has the reason.
        """
        try:
            trial = Trial(job.run, self.config)
        except ProjectError:
            raise
        except Exception as error:
            raise ConfigError(
                f"the journal of the study {self.config.study} can't be used ({type(error).__name__}: {error}); start a new study."
            ) from error
        done = threading.Event()
        watch = threading.Thread(target=trial.watch, args=(done, job.stop), daemon=True)
        watch.start()
        try:
            yield
        finally:
            done.set()
            watch.join()
            trial.finish()


class Trial:
    """A trial in the journal of its study; `pruned` is why it is stopped, empty if it is not."""

    def __init__(self, run: RunDir, config: Config) -> None:
        self.run, self.metric = run, str(config.checkpoint.monitor)
        self.mode, self.pruned = str(config.checkpoint.mode), ""
        self.folder = run.path.with_name(str(config.study))
        self.study = read_study(self.folder)
        self.member = int(run.id.rpartition("-")[2])
        self._study = open_study(self.study, self.folder, self.mode, self.member)
        try:
            self._trial = self._ask()
            self._write_config()
        except ConfigError as error:
            if (run.path / TRIAL).exists():
                run.update(state="failed", why=str(error))
                self.finish()
            else:
                run.update(state="cancelled", why=str(error))
            raise

    def _ask(self) -> "optuna.Trial":
        """Return the trial that this run has, or a new one, which trial.json records."""
        import optuna

        trials = self._study.get_trials(deepcopy=False)
        if (number := read_json(self.run.path / TRIAL).get("number")) is not None:
            self._print("continues")
            return optuna.Trial(self._study, trials[number]._trial_id)
        states = [trial.state.name for trial in trials]
        if states.count("FAIL") >= MAX_FAILURES and not {"COMPLETE", "PRUNED"} & {*states}:
            raise ConfigError(
                f"the first {states.count('FAIL')} trials have failed, so no other one is started: look at one of them "
                f"({self.folder}-0), and start a new study."
            )
        read = optuna.distributions.json_to_distribution
        space = {key: read(json.dumps(form)) for key, form in self.study.space.distributions.items()}
        trial = self._study.ask(space)
        write_atomic(self.run.path / TRIAL, dumps({"number": trial.number, "values": trial.params}))
        self._print(" ".join(f"{key}={value}" for key, value in trial.params.items()))
        return trial

    def _write_config(self) -> None:
        """Change the frozen configuration by what the values of the trial change. Raises ConfigError."""
        words = self.study.space.words(self._trial.params)
        before, after = (flatten(compose(w)) for w in (self.study.space.extremes()[0], words))
        frozen = flatten(read_frozen(self.run))
        kept = {key: value for key, value in frozen.items() if key in after or key not in before}
        changed = {key: value for key, value in after.items() if key not in before or before[key] != value}
        write_frozen(self.run, load(unflatten(kept | changed)), words)
        remember(self.run.path)  # the same command continues the trial

    def watch(self, done: threading.Event, stop: Any) -> None:
        """Report each new value to Optuna until `done`, and call `stop` if the trial is to be pruned."""
        reported = 0
        while self.study.pruner != "none" and not done.wait(POLL_S):
            values = metric_values(self.run, self.metric)
            new = [(at, value) for at, (_, value) in enumerate(values, 1) if at > reported and value == value]
            for at, value in new:
                self._trial.report(value, at)
            if new and self._trial.should_prune():
                self.pruned = (
                    f"pruned at its validation {len(values)}: {self.metric} {values[-1][1]:.6g} is worse than the median of the trials "
                    "before."
                )
                self._print(self.pruned)
                stop()
                return
            reported = len(values)

    def finish(self) -> None:
        """Record the result. A trial that was interrupted continues later, so it has none."""
        from optuna.trial import TrialState, create_trial

        state = self.run.read_info().get("state")
        value = best_value(self.run, self.metric, self.mode) if state == "completed" else None
        if self.pruned and state != "completed":
            state = "cancelled"
            self.run.update(state=state, why=self.pruned)
        ends = {"completed": TrialState.FAIL if value is None else TrialState.COMPLETE}
        ends |= {"failed": TrialState.FAIL, "cancelled": TrialState.PRUNED}
        if state not in ends:
            return
        number = self._trial.number
        known = self._study.get_trials(deepcopy=False)[number]
        if not known.state.is_finished():
            self._study.tell(number, value, state=ends[state])
        elif value is not None and known.value is None:  # it had failed, and was submitted again
            space = known.distributions
            self._study.add_trial(create_trial(value=value, params=known.params, distributions=space))
        self._print(f"{state}{'' if value is None else f'  {self.metric} {value:.6g}'}")

    def _print(self, what: str) -> None:
        print(f"trial {self.member} of {self.study.trials}: {what}", flush=True)


def open_study(study: Study, folder: Any, mode: str, member: int) -> "optuna.Study":
    """Open the journal, or create it. The sampler of each member has a seed of its own."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

    class Lock(JournalFileSymlinkLock):
        """A lock whose owner removes half a line that a killed process has left, with which the next line would be damaged."""

        def acquire(self) -> bool:
            """Wait for the lock."""
            owned = super().acquire()
            with open(journal, "rb+") as file:
                if not (content := file.read()).endswith(b"\n"):
                    file.truncate(content.rfind(b"\n") + 1)
            return owned

    journal = str(folder / JOURNAL)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    seed = study.seed + member
    samplers = {
        # constant_liar: values near those of trials that still run are not proposed again
        "tpe": lambda: optuna.samplers.TPESampler(seed=seed, constant_liar=True),
        "random": lambda: optuna.samplers.RandomSampler(seed=seed),
    }
    pruners = {"none": optuna.pruners.NopPruner, "median": optuna.pruners.MedianPruner}
    return optuna.create_study(
        storage=JournalStorage(JournalFileBackend(journal, Lock(journal))),
        study_name=folder.name,
        sampler=samplers[study.sampler](),
        pruner=pruners[study.pruner](),
        direction="minimize" if mode == "min" else "maximize",
        load_if_exists=True,
    )
