"""Trials of a search as jobs: each has a job and a run folder of its own, and all run the same code."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from train_anywhere.config.command.members import Member
from train_anywhere.errors import SchedulerError, UnclearError
from train_anywhere.files import ROOT
from train_anywhere.files.atomic import write_atomic
from train_anywhere.runs.folder import RunDir, claim, point_latest
from train_anywhere.slurm.scheduler import client, ownership, queue
from train_anywhere.slurm.scheduler.jobs_in_turn import submit_chain
from train_anywhere.slurm.scheduler.wait_for_jobs import Waiting
from train_anywhere.slurm.script import clean_environment
from train_anywhere.slurm.script.job import Job
from train_anywhere.slurm.script.render import render
from train_anywhere.slurm.status import find_runs
from train_anywhere.slurm.submission import resubmit, snapshot
from train_anywhere.slurm.submission.rollback import Submission
from train_anywhere.slurm.submission.submit import (
    kept,
    let_run,
    prepared,
    record,
    results_of,
    with_code,
    write_run,
)


def submit_trial(job: Job, member: Member, folder: Path, code: Path) -> list[str]:
    """Submit one trial; returns its job ids.

    Args:
        folder: of its run, which is made.
        code: of the study; made by its first trial.

    Raises:
        SubmitError, SchedulerError: it was refused; nothing of it is left.
        UnclearError: a job may be queued.
    """
    kind, results = job.cluster.scheduler, results_of([member])
    first = not code.is_dir()
    taken = snapshot.take(ROOT, code, results) if first else known(code)
    packed = prepared(job, results)
    with Submission(results, []) as submission:
        run = claim(folder)
        submission.new(run)
        job = with_code(dataclasses.replace(packed, run=str(run.path), code=str(code)))
        script = run.path / client.SCRIPT[kind]
        write_atomic(script, render(job))
        write_run(run, job, member, taken)
        point_latest(results, run.path)
        submission.written()
        try:
            job_ids = submit_chain(kind, script, job.cluster.chain, lambda i: record([run], None, i))
        except UnclearError as error:
            let_run(script, [run], [member])
            raise kept(error, [run]) from None
    if first:
        clean_environment.show_notes(script)
    let_run(script, [run], [member])
    return job_ids


def known(code: Path) -> snapshot.Snapshot | None:
    """What the code of a study is of, as its first trial has recorded it."""
    for path in code.parent.parent.glob(f"{code.parent.name}-*"):
        info = RunDir(path).info()
        if "commit" in info:
            return snapshot.Snapshot(info["commit"], bool(info.get("dirty")), ())
    return None


def again(run: RunDir, results: Path) -> str:
    """Submit a trial again, which goes on from its newest checkpoint; returns the job id."""
    return resubmit.again([find_runs.submitted(run.path)], results, trust=False)


def ended(waiting: Waiting, live: Sequence[RunDir]) -> dict[str, str]:
    """The state of each run that has no job any more, by its id; none while the scheduler is silent.

    Raises:
        SchedulerError: it was silent for a long time.
    """
    found = [find_runs.submitted(run.path) for run in live]
    kinds = {run.scheduler for run in found if run.scheduler}
    gone: list[find_runs.Submitted] = []
    for kind in kinds:
        mine = [run for run in found if run.scheduler == kind]
        known = waiting.states(kind, [i for run in mine for i in run.job_ids])
        gone += [run for run in mine if known is not None and not known.living(run.job_ids)]
    try:
        gone, states = find_runs.ask(gone) if gone else ([], queue.JobStates())
    except SchedulerError:
        return {}
    named = {run.folder.id: find_runs.state(run, states)[0] for run in gone}
    return {name: state for name, state in named.items() if state != "unknown"}


def cancel(run: RunDir) -> None:
    """Stop the job of a trial; its ranks save a checkpoint first."""
    found = find_runs.submitted(run.path)
    ownership.refuse_others(found, found.job_ids[-1:])
    queue.cancel(str(found.scheduler), found.job_ids[-1:])
