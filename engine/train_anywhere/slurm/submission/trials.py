"""Submit the trials of a search. Each has its own job and run folder, and all run the same code."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from train_anywhere.config.command.members import Member
from train_anywhere.errors import SchedulerError, UnclearError
from train_anywhere.files import ROOT
from train_anywhere.files.atomic import write_atomic
from train_anywhere.runs.folder import RunDir, claim, point_latest
from train_anywhere.slurm.scheduler import client, queue
from train_anywhere.slurm.scheduler.job_chain import submit_chain
from train_anywhere.slurm.scheduler.queue import QueuePoller
from train_anywhere.slurm.script import clean_environment
from train_anywhere.slurm.script.job import Job
from train_anywhere.slurm.script.render import render
from train_anywhere.slurm.status import find_runs, local_runs
from train_anywhere.slurm.submission import resubmit, snapshot
from train_anywhere.slurm.submission.rollback import Submission
from train_anywhere.slurm.submission.submit import (
    prepare_features,
    record_job,
    record_unclear_job,
    remember_runs,
    results_folder,
    write_run,
)


def submit_trial(job: Job, member: Member, folder: Path, code: Path) -> list[str]:
    """Submit one trial with a new run folder, and return its job ids. The first trial creates the code of the study.

    Raises:
        SubmitError, SchedulerError: the submission was refused, and all that was written is removed.
        UnclearError: a job may be queued.
    """
    kind, results = job.cluster.scheduler, results_folder([member])
    first = not code.is_dir()
    outside = member.config.program.copied
    code_snapshot = snapshot.take_snapshot(ROOT, code, results, outside) if first else recorded_snapshot(code)
    prepared = prepare_features(job, results)
    with Submission(results, []) as submission:
        run = claim(folder)
        submission.add_run(run)
        job = dataclasses.replace(prepared, run=str(run.path), code=str(code))
        job = prepare_features(job, results, code)
        script = run.path / client.SCRIPT[kind]
        write_atomic(script, render(job))
        write_run(run, job, member, code_snapshot)
        point_latest(results, run.path)
        submission.mark_written()
        remember_runs(script, [run], [member])
        try:
            job_ids = submit_chain(kind, script, job.cluster.chain, lambda i: record_job([run], None, i))
        except UnclearError as error:
            raise record_unclear_job(error, [run]) from None
    if first:
        clean_environment.print_notes(script)
    return job_ids


def recorded_snapshot(code: Path) -> snapshot.Snapshot | None:
    """Return the snapshot of a study's code, as its first trial has recorded it."""
    for path in code.parent.parent.glob(f"{code.parent.name}-*"):
        info = RunDir(path).read_info()
        if "commit" in info:
            return snapshot.Snapshot(info["commit"], bool(info.get("dirty")), ())
    return None


def resubmit_trial(run: RunDir, results: Path) -> str:
    """Submit a trial again, to resume it from its newest checkpoint, and return the job id."""
    return resubmit.resubmit([find_runs.read_entry(run.path)], results, trust=False)


def read_ended_states(poller: QueuePoller, live: Sequence[RunDir]) -> dict[str, str]:
    """Return the state of each run whose jobs have ended, by run id; nothing while the scheduler does not answer.

    Raises:
        SchedulerError: the scheduler did not answer for a long time.
    """
    found = [find_runs.read_entry(run.path) for run in live]
    kinds = {run.scheduler for run in found if run.scheduler}
    gone: list[find_runs.RunEntry] = []
    for kind in kinds:
        mine = [run for run in found if run.scheduler == kind]
        known = poller.poll(kind, [i for run in mine for i in run.job_ids])
        gone += [run for run in mine if known is not None and not known.active(run.job_ids)]
    try:
        gone, states = find_runs.query_scheduler(gone) if gone else ([], queue.JobStates())
    except SchedulerError:
        return {}
    ended = [run for run in gone if not states.active(run.job_ids)]  # a job may only now have been found
    named = {run.folder.id: find_runs.read_state(run, states)[0] for run in ended}
    return {name: state for name, state in named.items() if state != "unknown"}


def cancel_trial(run: RunDir) -> None:
    """Cancel the job of a trial; its ranks save a checkpoint first."""
    [found] = find_runs.with_unrecorded_jobs([find_runs.read_entry(run.path)], wait=True)
    if jobs := found.job_ids[-1:]:
        local_runs.refuse_other_jobs(found, jobs)
        queue.cancel(str(found.scheduler), jobs)
