"""Trials as jobs of a cluster."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from train_anywhere.config.command.members import Member, load_members, refuse_mixed_members
from train_anywhere.config.schema import Config
from train_anywhere.errors import ConfigError
from train_anywhere.files.terminal.output import protect_output
from train_anywhere.launch.preflight import data_problems
from train_anywhere.runs.folder import RunDir
from train_anywhere.slurm.scheduler.queue import QueuePoller
from train_anywhere.slurm.script.job import Job, format_hours, format_product, gpu_hours
from train_anywhere.slurm.submission import resubmit
from train_anywhere.slurm.submission.allocation import current_allocation
from train_anywhere.slurm.submission.prepare import placeholder_job, refusals, refuse_sweeper
from train_anywhere.slurm.submission.submit import format_job


class ClusterTrials:
    """Submitter of trials, which also reads their states.

    Args:
        code: folder of the code that all jobs run.
        results: folder of the run folders.
        trials: number of all trials, to check their total cost.
    """

    pause = 2.0
    """Seconds between two queries to the scheduler for all trials."""

    def __init__(self, code: Path, results: Path, trials: int) -> None:
        self._trials = trials
        self._code, self._results, self._waiting = code, results, QueuePoller()
        protect_output()

    def check(self, tree: Mapping[str, Any], words: Sequence[str]) -> Config:
        """Return the configuration of a trial. Raises ConfigError with all of its problems."""
        refuse_mixed_members([tree], submitted=True)
        if current_allocation():
            raise ConfigError(
                "hydra/sweeper=optuna submits a job for each trial, which can't be done inside an allocation; exit the allocation first."
            )
        check = (lambda *_: []) if tree["program"]["command"] else data_problems
        member = load_members([tree], [words], lambda c: refusals(c, None, None, None, check))[0]
        refuse_sweeper(member.config.wait, wants_results=not member.config.dry_run)
        job = placeholder_job(member.config, None, None)
        self._refuse_cost(job, member.config.cluster.max_gpu_hours)
        return member.config

    def _refuse_cost(self, job: Job, most: float | None) -> None:
        hours = (gpu_hours(job) or 0) * self._trials
        if most is not None and hours > most:
            raise ConfigError(
                f"{format_product(job)} x {self._trials} trials may be {format_hours(hours)} GPU hours, over "
                f"cluster.max_gpu_hours={most:g}; use fewer hydra.sweeper.n_trials, less cluster.time, or a larger cluster.max_gpu_hours."
            )

    def format_dry_run(self, config: Config) -> str:
        """Return the lines that a dry run prints."""
        return format_job(placeholder_job(config, None, None))

    def start(self, config: Config, words: Sequence[str], folder: Path) -> str:
        """Submit a trial with a new run folder; return its jobs for the log."""
        job = placeholder_job(config, None, None)
        return f"job {' -> '.join(resubmit.submit_trial(job, Member(config, words), folder, self._code))}"

    def resume(self, run: RunDir) -> str:
        """Submit a new job for a trial whose job was lost; return it for the log."""
        return f"job {resubmit.resubmit_trial(run, self._results)}"

    def read_ended(self, live: Sequence[RunDir]) -> dict[str, str]:
        """Return the states of the trials that have no job any more, by run id."""
        return resubmit.read_ended_states(self._waiting, live)

    def stop(self, run: RunDir) -> None:
        """Signal a trial to save a checkpoint and stop."""
        resubmit.cancel_trial(run)

    def handle_interrupt(self, live: Sequence[RunDir]) -> str:
        """Return the message after Ctrl-C: jobs continue."""
        return f"{len(live)} trial{'s'[: len(live) != 1]} continue as jobs."
