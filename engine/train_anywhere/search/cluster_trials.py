"""Trials as jobs of a cluster."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from train_anywhere.config.command.members import Member, load_members, refuse_unlike
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError
from train_anywhere.files.terminal.output import protect
from train_anywhere.launch.preflight import data_problems
from train_anywhere.runs.folder import RunDir
from train_anywhere.slurm.scheduler.wait_for_jobs import Waiting
from train_anywhere.slurm.script import gpu_hours
from train_anywhere.slurm.submission import dry_run, trials
from train_anywhere.slurm.submission.allocation import current_allocation
from train_anywhere.slurm.submission.prepare import placeholder_job, refusals, refuse_sweeper


class Cluster:
    """Submits trials, and knows which have ended.

    Args:
        code: folder of the code that all jobs run.
        results: where run folders are.
        trials: how many there will be, for what they may cost together.
    """

    pause = 2.0
    """Seconds between two questions to the scheduler, for all trials together."""

    def __init__(self, code: Path, results: Path, trials: int) -> None:
        self._trials = trials
        self._code, self._results, self._waiting = code, results, Waiting()
        protect()

    def check(self, tree: Mapping[str, Any], words: Sequence[str]) -> Config:
        """The configuration of a trial. Raises ConfigError with all that is wrong with it."""
        refuse_unlike([tree], submitted=True)
        if current_allocation():
            raise ConfigError(
                "hydra/sweeper=optuna submits a job for each trial, which can't be done inside an allocation; leave it."
            )
        member = load_members([tree], [words], lambda c: refusals(c, None, None, None, data_problems))[0]
        refuse_sweeper(member.config, wants_results=not member.config.dry_run)
        self._refuse_cost(member.config)
        return member.config

    def _refuse_cost(self, config: Config) -> None:
        job, most = placeholder_job(config, None, None), config.cluster.max_gpu_hours
        hours = (gpu_hours.gpu_hours(job) or 0) * self._trials
        if most is not None and hours > most:
            raise ConfigError(
                f"{gpu_hours.product(job)} x {self._trials} trials may be {gpu_hours.short(hours)} GPU hours, over "
                f"cluster.max_gpu_hours={most:g}; use fewer hydra.sweeper.n_trials, less cluster.time, or a larger cluster.max_gpu_hours."
            )

    def shown(self, config: Config) -> str:
        """What a dry run prints."""
        return dry_run.table(placeholder_job(config, None, None))

    def begin(self, config: Config, words: Sequence[str], folder: Path) -> str:
        """Submit a trial with a new run folder; returns its jobs."""
        job = placeholder_job(config, None, None)
        return f"job {' -> '.join(trials.submit_trial(job, Member(config, words), folder, self._code))}"

    def again(self, run: RunDir) -> str:
        """Go on with a trial whose job was lost."""
        return f"job {trials.again(run, self._results)}"

    def ended(self, live: Sequence[RunDir]) -> dict[str, str]:
        """The state of each that has no job any more, by its id."""
        return trials.ended(self._waiting, live)

    def stop(self, run: RunDir) -> None:
        """Ask a trial to save and stop."""
        trials.cancel(run)

    def interrupted(self, live: Sequence[RunDir]) -> str:
        """After Ctrl-C: jobs go on."""
        return f"{len(live)} trial{'s'[: len(live) != 1]} go on as jobs."
