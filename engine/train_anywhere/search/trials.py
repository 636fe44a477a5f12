"""The two runners of trials: processes of this machine, or jobs of a cluster."""

import dataclasses
import signal
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from subprocess import Popen
from typing import Any

from train_anywhere.config.command.compose import compose
from train_anywhere.config.command.members import Member, load_members, refuse_mixed_members
from train_anywhere.config.keys import flatten
from train_anywhere.config.schema import Config
from train_anywhere.distributed.layout import local_layout
from train_anywhere.errors import ConfigError, SchedulerError
from train_anywhere.files import ROOT, with_engine
from train_anywhere.files.atomic import open_file, write_atomic
from train_anywhere.files.terminal.output import protect_output
from train_anywhere.launch import local_run
from train_anywhere.launch.exits import rank_environment
from train_anywhere.launch.forkserver import Process
from train_anywhere.launch.preflight import data_problems
from train_anywhere.launch.processes import ForkServers, build_rank_command, run_monitor
from train_anywhere.runs.folder import RunDir, claim, point_latest
from train_anywhere.runs.reopen.frozen import load_frozen, read_frozen
from train_anywhere.runs.reopen.resume import read_run_overrides, select_group_choices
from train_anywhere.runs.reopen.trust import refuse_untrusted
from train_anywhere.slurm.scheduler import client, queue
from train_anywhere.slurm.scheduler.queue import QueuePoller
from train_anywhere.slurm.script import clean_environment
from train_anywhere.slurm.script.job import format_hours, format_product, gpu_hours
from train_anywhere.slurm.script.render import render
from train_anywhere.slurm.status import find_runs, local_runs
from train_anywhere.slurm.submission import snapshot
from train_anywhere.slurm.submission.allocation import current_allocation
from train_anywhere.slurm.submission.prepare import placeholder_job, refusals, refuse_sweeper
from train_anywhere.slurm.submission.resubmit import resubmit
from train_anywhere.slurm.submission.rollback import Submission
from train_anywhere.slurm.submission.submit import (
    format_job,
    prepare_features,
    remember_runs,
    results_folder,
    submit_recorded,
    write_run,
)

LOG = "log.txt"
"""File in the run folder with the output of a trial, if several run at once."""

ENDED_STATES = ("completed", "failed", "cancelled", "interrupted")
"""States of a run that has ended and must not be started again."""


class LocalTrials:
    """Trials as processes of this machine.

    Args:
        at_once: number of trials at once; with more than 1 each has its own log.
    """

    pause = 0.2
    """Seconds between two checks of the processes."""

    def __init__(self, at_once: int) -> None:
        self._quiet = at_once > 1
        self._processes: dict[str, tuple[Process, ExitStack]] = {}
        self._servers = ForkServers()
        protect_output()

    def check(self, tree: Mapping[str, Any], words: Sequence[str]) -> Config:
        """Return the configuration of a trial. Raises ConfigError with all of its problems."""
        refuse_mixed_members([tree], submitted=False)
        return load_members([tree], [words], local_run.local_problems)[0].config

    def format_dry_run(self, config: Config) -> str:
        """Return the lines that a dry run prints, without its last line."""
        return local_run.format_dry_run(config, local_layout(config)).rpartition("\n")[0]

    def start(self, config: Config, words: Sequence[str], folder: Path) -> str:
        """Start a trial in a new run folder, and return its process for the log."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        run = claim(folder)
        local_run.freeze(run, config, words, local_layout(config))
        point_latest(folder.parent.parent, folder)
        return self._start(run, config)

    def resume(self, run: RunDir) -> str:
        """Resume an interrupted trial. Raises ConfigError for untrusted values."""
        known = flatten(compose(select_group_choices(read_run_overrides(run))))
        refuse_untrusted(run.path, flatten(read_frozen(run)), known)
        return self._start(run, load_frozen(run))

    def _start(self, run: RunDir, config: Config) -> str:
        contexts, ranks = ExitStack(), local_layout(config).world_size
        start = Popen if config.program else self._servers.get_starter(config.framework, ranks)
        contexts.enter_context(run_monitor(run, config, start))
        log = contexts.enter_context(open_file(run.path / LOG, "ab")) if self._quiet else None
        # a new session, so that Ctrl-C reaches the process only once, from `handle_interrupt`
        process = start(
            build_rank_command(run, supervised=ranks > 1 or bool(config.cluster.retries)),
            cwd=ROOT,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=with_engine(rank_environment()),
        )
        self._processes[run.id] = (process, contexts)
        return f"process {process.pid}"

    def read_ended(self, live: Sequence[RunDir]) -> dict[str, str]:
        """Return the states of the trials that have stopped, by run id."""
        found = {}
        for run in live:
            if run.id in self._processes and self._processes[run.id][0].poll() is None:
                continue
            process, contexts = self._processes.pop(run.id, (None, ExitStack()))
            contexts.close()
            state = str(run.read_info().get("state"))
            crashed = process is not None and state == "running"
            found[run.id] = state if state in ENDED_STATES else "failed" if crashed else "preempted"
        return found

    def stop(self, run: RunDir, number: int = signal.SIGTERM) -> None:
        """Signal a trial to save a checkpoint and stop."""
        if run.id in self._processes:
            self._processes[run.id][0].send_signal(number)

    def handle_interrupt(self, live: Sequence[RunDir]) -> str:
        """Stop all trials after Ctrl-C, each with a checkpoint, and return the message."""
        for run in live:
            self.stop(run, signal.SIGINT)
        for run in live:
            if run.id in self._processes:
                self._processes[run.id][0].wait()
        self.read_ended(live)
        saved = sum((run.checkpoints / "newest").exists() for run in live)
        return f"{len(live)} trial{'s'[: len(live) != 1]} stopped, {saved} with a checkpoint saved."


class ClusterTrials:
    """Trials as jobs of a cluster. All run the code in the study's folder.

    Args:
        trials: number of all trials, to check their total cost.
    """

    pause = 2.0
    """Seconds between two queries to the scheduler for all trials."""

    def __init__(self, trials: int) -> None:
        self._trials, self._poller = trials, QueuePoller()
        protect_output()

    def check(self, tree: Mapping[str, Any], words: Sequence[str]) -> Config:
        """Return the configuration of a trial. Raises ConfigError with all of its problems."""
        refuse_mixed_members([tree], submitted=True)
        if current_allocation():
            raise ConfigError(
                "hydra/sweeper=optuna submits a job for each trial, which can't be done inside an allocation; exit the allocation first."
            )
        check = (lambda *_: []) if tree["program"]["command"] else data_problems
        config = load_members([tree], [words], lambda c: refusals(c, None, None, None, check))[0].config
        refuse_sweeper(config.wait, wants_results=not config.dry_run)
        job, most = placeholder_job(config, None, None), config.cluster.max_gpu_hours
        hours = (gpu_hours(job) or 0) * self._trials
        if most is not None and hours > most:
            raise ConfigError(
                f"{format_product(job)} x {self._trials} trials may be {format_hours(hours)} GPU hours, over "
                f"cluster.max_gpu_hours={most:g}; use fewer hydra.sweeper.n_trials, less cluster.time, or a larger cluster.max_gpu_hours."
            )
        return config

    def format_dry_run(self, config: Config) -> str:
        """Return the lines that a dry run prints."""
        return format_job(placeholder_job(config, None, None))

    def start(self, config: Config, words: Sequence[str], folder: Path) -> str:
        """Submit a trial with a new run folder, and return its jobs for the log.

        The first trial creates the code of the study.

        Raises:
            SubmitError, SchedulerError: the submission was refused, and all that was written is removed.
            UnclearError: a job may be queued.
        """
        job, member = placeholder_job(config, None, None), Member(config, words)
        kind, results = job.cluster.scheduler, results_folder([member])
        code = folder.with_name(folder.name.rpartition("-")[0]) / "code"
        first = not code.is_dir()
        taken = (
            snapshot.take_snapshot(ROOT, code, results, config.program.copied)
            if first
            else recorded_snapshot(code)
        )
        prepared = prepare_features(job, results)
        with Submission(results, []) as submission:
            run = claim(folder)
            submission.add_run(run)
            job = dataclasses.replace(prepared, run=str(run.path), code=str(code))
            job = prepare_features(job, results, code)
            script = run.path / client.SCRIPT[kind]
            write_atomic(script, render(job))
            write_run(run, job, member, taken)
            point_latest(results, run.path)
            submission.mark_written()
            remember_runs(script, [run], [member])
            jobs = submit_recorded(kind, script, job.cluster.chain, [run], None)
        if first:
            clean_environment.print_notes(script)
        return f"job {' -> '.join(jobs)}"

    def resume(self, run: RunDir) -> str:
        """Submit a new job for a trial whose job was lost, and return it for the log."""
        results = run.path.parent.parent
        return f"job {resubmit([find_runs.read_entry(run.path)], results, trust=False)}"

    def read_ended(self, live: Sequence[RunDir]) -> dict[str, str]:
        """Return the states of the trials whose jobs have ended, by run id.

        There are none while the scheduler does not answer. Raises SchedulerError if the scheduler did not answer for a long time.
        """
        found = [find_runs.read_entry(run.path) for run in live]
        gone: list[find_runs.RunEntry] = []
        for kind in {run.scheduler for run in found if run.scheduler}:
            mine = [run for run in found if run.scheduler == kind]
            known = self._poller.poll(kind, [i for run in mine for i in run.job_ids])
            gone += [run for run in mine if known is not None and not known.active(run.job_ids)]
        try:
            gone, states = find_runs.query_scheduler(gone) if gone else ([], queue.JobStates())
        except SchedulerError:
            return {}
        ended = [run for run in gone if not states.active(run.job_ids)]  # a job may only now have been found
        named = {run.folder.id: find_runs.read_state(run, states)[0] for run in ended}
        return {name: state for name, state in named.items() if state != "unknown"}

    def stop(self, run: RunDir) -> None:
        """Cancel the job of a trial, after its ranks have saved a checkpoint."""
        [found] = find_runs.with_unrecorded_jobs([find_runs.read_entry(run.path)], wait=True)
        if jobs := found.job_ids[-1:]:
            local_runs.refuse_other_jobs(found, jobs)
            queue.cancel(str(found.scheduler), jobs)

    def handle_interrupt(self, live: Sequence[RunDir]) -> str:
        """Return the message after Ctrl-C: jobs continue."""
        return f"{len(live)} trial{'s'[: len(live) != 1]} continue as jobs."


def recorded_snapshot(code: Path) -> snapshot.Snapshot | None:
    """Return the snapshot of a study's code, as its first trial has recorded it."""
    for path in code.parent.parent.glob(f"{code.parent.name}-*"):
        info = RunDir(path).read_info()
        if "commit" in info:
            return snapshot.Snapshot(info["commit"], bool(info.get("dirty")), ())
    return None
