"""Make the run folder, submit, say so; or run the same script in an allocation that is there already."""

import dataclasses
import itertools
import subprocess
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from train_anywhere.config.command.members import Member
from train_anywhere.config.schema import Config
from train_anywhere.errors import SubmitError, UnclearError
from train_anywhere.features.feature import Followed
from train_anywhere.files import ROOT
from train_anywhere.files.atomic import write_atomic
from train_anywhere.files.ordinary import open_file
from train_anywhere.files.removal import remove
from train_anywhere.runs.attempts import running_job
from train_anywhere.runs.folder import RunDir, claim, claim_code, create, now, point_latest
from train_anywhere.runs.reopen.from_scratch import put_back, set_aside
from train_anywhere.runs.reopen.frozen import write_frozen
from train_anywhere.runs.reopen.trust import remember, remember_job, remember_script
from train_anywhere.runs.summary import display_path
from train_anywhere.slurm import rules
from train_anywhere.slurm.rules.rule_request import Request
from train_anywhere.slurm.scheduler import client
from train_anywhere.slurm.scheduler.jobs_in_turn import submit_chain
from train_anywhere.slurm.scheduler.wait_for_jobs import Waiting
from train_anywhere.slurm.script import clean_environment, render
from train_anywhere.slurm.script.job import Job
from train_anywhere.slurm.status.best import result
from train_anywhere.slurm.submission import dry_run, snapshot
from train_anywhere.slurm.submission.rollback import Submission


def submit(
    request: Request, members: Sequence[Member], run: RunDir | None, followed: Followed | None = None
) -> list[float | SubmitError | None]:
    """Submit a checked job and print what comes next; see `train_anywhere.slurm.submission.prepare.start`.

    Args:
        request: the job of all members.
        members: each gets a run folder.
        run: the run folder to resume, or None for new ones.
        followed: what must be complete before.

    Raises:
        SubmitError, SchedulerError: the scheduler refused it or is not there; everything is as it was before.
        UnclearError: a job may be queued: the run folder is kept.
        Interrupted: Ctrl-C; everything is as it was before.
    """
    kind = request.job.cluster.scheduler
    packed = prepared(request.job, results_of(members))
    with Submission(results_of(members), [run] if run else []) as submission:
        job, runs, taken = make_folders(packed, members, run, submission, followed)
        script = Path(job.code).parent / client.SCRIPT[kind]
        try:
            job_ids = submit_chain(
                kind,
                script,
                job.cluster.chain,
                lambda i: record(runs, job.members, i),
                ok=followed.jobs if followed else (),
            )
        except UnclearError as error:
            let_run(script, runs, members)
            raise kept(error, runs) from None
    let_run(script, runs, members)
    log = render.log_path(job).replace("%j", job_ids[0]).replace("%A_%a", f"{job_ids[0]}_%a") + ".out"
    notes = [
        *rules.notes(request),
        *clean_environment.notes(script.read_text()),
        *taken.notes,
        *([followed.note] if followed and followed.note else []),
    ]
    print(dry_run.submitted(job_ids, job, [r.path for r in runs], log, notes), flush=True)
    if not request.config.wait:
        return [None] * len(runs)
    wait_for(kind, job_ids)
    return [result(r, m.config) for r, m in zip(runs, members, strict=True)]


def make_folders(
    job: Job,
    members: Sequence[Member],
    run: RunDir | None,
    submission: Submission,
    followed: Followed | None = None,
) -> tuple[Job, list[RunDir], snapshot.Snapshot]:
    """The run folders of a job: frozen configuration, code, script. A sweep's members share code and script.

    Returns:
        The job with its real folders, the run folders, what the snapshot is of.
    """
    results = results_of(members)
    base = run or create(results, job.name)
    code = fresh(base.path / "code")
    if run:
        submission.undo.append(partial(remove, claim_code(code)))
        if members[0].config.from_scratch:
            submission.undo.append(partial(put_back, run, set_aside(run)))
    else:
        submission.new(base)
    runs = (
        [base]
        if job.members is None
        else [RunDir(base.path.with_name(f"{base.id}-{m}")) for m in job.members]
    )
    job = dataclasses.replace(job, run=str(base.path), code=str(code))
    taken = snapshot.take(ROOT, Path(job.code), results)
    job = with_code(job)
    write_atomic(base.path / client.SCRIPT[job.cluster.scheduler], render.render(job))
    for r, member in zip(runs, members, strict=True):
        if r is not base:
            submission.new(claim(r.path))
        write_run(r, job, member, taken, followed)
    if job.members is not None:
        point_latest(results, runs[0].path)
    submission.written()
    return job, runs, taken


def prepared(job: Job, results: Path) -> Job:
    """Return the job with what its features do on the login node. Raises SubmitError."""
    return dataclasses.replace(job, features=job.features.before_submission(results))


def with_code(job: Job) -> Job:
    """Return the job with what its features do with the copy of the code. Raises OSError."""
    return dataclasses.replace(job, features=job.features.after_snapshot(Path(job.code)))


def write_run(
    run: RunDir,
    job: Job,
    member: Member,
    taken: snapshot.Snapshot | None,
    followed: Followed | None = None,
) -> None:
    """What the ranks read, and what run.json says of a run before its job begins.

    Args:
        taken: what its code is of; None where that is known of another run with the same code.
    """
    write_frozen(run, for_a_log(member.config), member.overrides)
    run.update(
        state="queued",
        framework=member.config.framework,
        strategy=job.strategy,
        launch=job.launch,
        cluster=job.cluster.name,
        nodes=job.nodes,
        world_size=job.world_size,
        **({"commit": taken.commit, "dirty": taken.dirty} if taken else {}),
        submitted=now(),
        after=followed.path if followed else None,
    )


def results_of(members: Sequence[Member]) -> Path:
    """Where run folders are made."""
    return Path(members[0].config.paths.results)


def let_run(script: Path, runs: Sequence[RunDir], members: Sequence[Member]) -> None:
    """Record that this user submitted these run folders, so that resuming them needs no trust=true."""
    remember_script(script)
    for run, member in zip(runs, members, strict=True):
        remember(run.path, member.config)


def for_a_log(config: Config) -> Config:
    """The configuration for a job that nobody watches: mpirun gives its ranks a terminal, and a bar would fill the log."""
    if config.monitor.progress != "auto":
        return config
    return dataclasses.replace(config, monitor=dataclasses.replace(config.monitor, progress="plain"))


def fresh(code: Path) -> Path:
    """A folder for the snapshot that no job of an earlier submission is reading: code, code-2, code-3, ..."""
    folder, number = code, 1
    while folder.exists():
        number += 1
        folder = code.with_name(f"{code.name}-{number}")
    return folder


def record(runs: Sequence[RunDir], members: Sequence[int] | None, job_id: str) -> None:
    """Append a job id to jobs.txt: run.json belongs to rank 0 as soon as the job may run."""
    for run, member in itertools.zip_longest(runs, members or ()):
        with open_file(run.jobs, "ab") as file:
            file.write(f"{job_id}\n".encode() if member is None else f"{job_id}_{member}\n".encode())


def kept(error: UnclearError, runs: Sequence[RunDir]) -> UnclearError:
    """A job may be queued: its run folder says so, and so does the error."""
    if error.job_lost:
        record(runs, None, client.UNCLEAR)
    for run in runs:
        if run.info().get("state") == "queued":
            run.update(submission=str(error))
    folder = display_path(runs[0].path) + (f" and {len(runs) - 1} more" if len(runs) > 1 else "")
    return error.adding(f"The run folder is kept: {folder}")


def run_in_allocation(request: Request, member: Member, run: RunDir | None) -> int:
    """Run the batch script here and now, in the foreground; returns the exit code of training."""
    packed = prepared(request.job, results_of([member]))
    with Submission(results_of([member]), [run] if run else []) as submission:
        job, [run], _ = make_folders(packed, [member], run, submission)
        record([run], None, str(running_job()))
        remember_job(run.path, str(running_job()))
    script = Path(job.code).parent / client.SCRIPT[job.cluster.scheduler]
    let_run(script, [run], [member])
    print(
        f"In this allocation: {job.nodes} nodes, {job.world_size} ranks. Run folder: {run.path}", flush=True
    )
    process = subprocess.Popen(["bash", str(script)], env=clean_environment.for_allocation(job.ranks))
    while True:
        try:
            code = process.wait()
            return 128 - code if code < 0 else code
        except KeyboardInterrupt:  # Ctrl-C reaches the script too, which tells the ranks to save
            continue


def wait_for(kind: str, job_ids: Sequence[str], poll: float = 5.0) -> None:
    """Return when none of the jobs is queued or running any more.

    Raises:
        SchedulerError: the scheduler could not be asked for a long time.
    """
    waiting = Waiting()
    while waiting.living(kind, job_ids):
        time.sleep(poll)
