"""Submit runs again, from the newest checkpoint, and the trials of a search, which all run the same code."""

import dataclasses
import os
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from train_anywhere.config.command.members import Member
from train_anywhere.errors import CheckpointError, SchedulerError, SubmitError, UnclearError
from train_anywhere.files import ROOT
from train_anywhere.files.atomic import write_atomic
from train_anywhere.runs.folder import RunDir, claim, point_latest
from train_anywhere.runs.links import refuse_links
from train_anywhere.runs.reopen.frozen import read_frozen
from train_anywhere.runs.reopen.trust import refuse_foreign_script
from train_anywhere.runs.summary import resume_command, train_command
from train_anywhere.slurm.rules.local_rules import is_lost
from train_anywhere.slurm.scheduler import client, queue
from train_anywhere.slurm.scheduler.client import submit_chain
from train_anywhere.slurm.scheduler.queue import QueuePoller
from train_anywhere.slurm.script import clean_environment
from train_anywhere.slurm.script.clean_environment import print_notes
from train_anywhere.slurm.script.job import Job
from train_anywhere.slurm.script.render import ranges, render
from train_anywhere.slurm.status import find_runs, local_runs
from train_anywhere.slurm.status.dependency import find_dependency
from train_anywhere.slurm.status.find_runs import RunEntry
from train_anywhere.slurm.submission import snapshot
from train_anywhere.slurm.submission.rollback import Submission
from train_anywhere.slurm.submission.submit import (
    prepare_features,
    record_job,
    record_unclear_job,
    remember_runs,
    results_folder,
    write_run,
)


def resubmit(runs: Sequence[RunEntry], results: Path, trust: bool) -> str:
    """Submit a run, or members of one sweep, again, with the same options, and return the job ids.

    `trust` accepts a script that this user has not submitted from its folder.

    Raises:
        CheckpointError: a file of a run folder is a link.
        SubmitError, SchedulerError: the nodes would not find a run folder, or the submission was refused, and the runs are unchanged.
        UnclearError: a job may be queued.
    """
    for submitted in runs:
        refuse_links(submitted.folder)
        if not os.access(submitted.folder.path, os.W_OK):
            raise SubmitError(
                f"the run folder {submitted.folder.path} can't be written; nothing was submitted."
            )
        refuse_own_disk(submitted.folder)
    script, kind = common_script(runs), str(runs[0].scheduler)
    refuse_foreign_script(script, trust)
    followed = find_dependency(runs[0].folder.read_info().get("after"), kind, results)
    folders = [r.folder for r in runs]
    members = [r.member for r in runs if r.member is not None]
    with Submission(results, folders) as submission:
        for run in folders:
            run.update(state="queued", submission=None)
        submission.mark_written()
        try:
            jobs = submit_chain(
                kind,
                script,
                _chain_length(folders[0]),
                lambda i: record_job(folders, members or None, i),
                members=_array_members(members, script),
                ok=followed.jobs if followed else (),
            )
        except UnclearError as error:
            raise record_unclear_job(error, folders) from None
    print_notes(script)
    return " -> ".join(jobs)


def _chain_length(run: RunDir) -> int:
    """Return `cluster.chain` of a run; 1 if its configuration can't be read."""
    with suppress(CheckpointError, KeyError, TypeError):
        return int(read_frozen(run)["cluster"]["chain"])
    return 1


def refuse_own_disk(run: RunDir) -> None:
    """Refuse a run folder below `cluster.local_disk`, such as one of an interactive job. Raises SubmitError."""
    disk = ""
    with suppress(CheckpointError, KeyError, TypeError):
        disk = str(read_frozen(run)["cluster"]["local_disk"])
    if is_lost(run.path, disk):
        raise SubmitError(
            f"{run.path} is below cluster.local_disk={disk}, and each node has its own {disk}, where the job would not find it; move it "
            f"to a folder that all nodes share, then use {train_command()} resume=FOLDER."
        )


def _array_members(members: Sequence[int], script: Path) -> str | None:
    """Return the members as a list for the scheduler, with the script's limit of members that run at once."""
    limit = re.search(
        r"^#(?:SBATCH --array=|PBS -J ).*(%\d+)$", script.read_text(errors="replace"), re.MULTILINE
    )
    return ranges(members) + (limit[1] if limit and len(members) > 1 else "") if members else None


def common_script(runs: Sequence[RunEntry]) -> Path:
    """Return the batch script that all the runs share.

    Raises:
        SubmitError: a run has no script, there are several, or it belongs to another folder.
    """
    for run in runs:
        if run.script is None:
            raise SubmitError(local_runs.resume_message(run))
        refuse_renamed(run, run.script)
    scripts = {r.script for r in runs if r.script}
    if len(scripts) > 1:
        raise SubmitError(
            f"these are several submissions ({', '.join(r.folder.id for r in runs)}): name one of them."
        )
    return scripts.pop()


def refuse_renamed(run: RunEntry, script: Path) -> None:
    """Refuse a script that names another run folder, because the run was moved.

    Raises:
        SubmitError: the script names another folder, or can't be read.
    """
    try:
        text = script.read_text(errors="replace")
    except OSError as error:
        raise SubmitError(f"{script} can't be read: {error.strerror}.") from None
    named = re.search(r"^RUN=(.*)$", text, re.MULTILINE)
    if not named:
        return
    written = re.sub(r"-\$\w+$", "", " ".join(shlex.split(named[1])))
    base = run.folder.path if run.member is None else script.parent
    if os.path.realpath(written) != os.path.realpath(base):
        raise SubmitError(
            f"{run.folder.path} was moved: its batch script still trains in {written}; resume it with "
            f"`{resume_command(run.folder)}`."
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
    return resubmit([find_runs.read_entry(run.path)], results, trust=False)


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
