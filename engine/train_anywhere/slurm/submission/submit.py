"""Create the run folder and submit its batch script, again too, or run it in an allocation."""

import itertools
import os
import re
import shlex
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from train_anywhere.config.command.members import Member
from train_anywhere.distributed.topology import ranges
from train_anywhere.errors import CheckpointError, SubmitError, SubmitInterrupted, UnclearError, listed
from train_anywhere.files import ROOT
from train_anywhere.files.atomic import write_atomic
from train_anywhere.files.removal import remove
from train_anywhere.files.terminal.fit import fit, terminal_width
from train_anywhere.files.terminal.printable import one_line
from train_anywhere.runs.attempts import ALLOCATION, running_job
from train_anywhere.runs.folder import RunDir, claim, claim_part, create, no_empty_folders, now, point_latest
from train_anywhere.runs.reopen.frozen import read_frozen, refuse_links, write_frozen
from train_anywhere.runs.reopen.resume import move_aside, move_back
from train_anywhere.runs.reopen.trust import record, refuse_foreign_script, remember, remember_script
from train_anywhere.runs.summary import display_path, resume_command
from train_anywhere.slurm import rules
from train_anywhere.slurm.rules.job_rules import Request
from train_anywhere.slurm.rules.local_rules import is_lost
from train_anywhere.slurm.scheduler import client
from train_anywhere.slurm.scheduler.queue import poll_active
from train_anywhere.slurm.script import clean_environment, render, units
from train_anywhere.slurm.script.job import Job, count_gpus, describe_gpu_hours, gpu_hours
from train_anywhere.slurm.status import find_runs
from train_anywhere.slurm.status.best import sweep_result
from train_anywhere.slurm.status.dependency import find_dependency
from train_anywhere.slurm.submission import snapshot
from train_anywhere.slurm.submission.rollback import Submission, all_or_nothing, read_content


def submit(
    request: Request, members: Sequence[Member], run: RunDir | None, after: str | None, ok: Sequence[str]
) -> list[float | SubmitError | None]:
    """Submit a checked job and print the next commands. Returns the same as `prepare.start`.

    Without a `run` to resume, each member gets a new run folder. The run `after`, with the jobs `ok`, must be complete first.

    Raises SubmitError, SchedulerError: the scheduler refused the job or does not answer; all changes are undone. Raises UnclearError:
    a job may be queued, and the run folder is kept. Raises SubmitInterrupted: Ctrl-C was pressed; all changes are undone.
    """
    kind = request.job.cluster.scheduler
    with all_or_nothing(Path(request.config.paths.results), [run] if run else []) as submission:
        job, runs, script, code_snapshot = make_folders(request.job, members, run, submission, after)
        tasks = [job.array[n // job.pack] for n, _ in enumerate(job.members or ())]
        job_ids = submit_recorded(kind, script, job.cluster.chain, runs, tasks, ok=ok)
    # Slurm's names of parts: `%%` is a percent sign of the folder
    log = re.sub("%([%jA])", lambda part: "%" if part[1] == "%" else job_ids[0], render.log_path(job))
    notes = [*rules.notes(request), *clean_environment.notes(script.read_text()), *code_snapshot.notes]
    if after and ok:
        notes.append(f"it starts when {display_path(Path(after))} is complete (job {listed(ok)}).")
    print(format_submission(job_ids, job, [r.path for r in runs], f"{log}.out", notes), flush=True)
    if not request.config.wait:
        return [None] * len(runs)
    wait_for_jobs(kind, job_ids)
    return [sweep_result(r, m.config.checkpoint) for r, m in zip(runs, members, strict=True)]


def make_folders(
    job: Job, members: Sequence[Member], run: RunDir | None, submission: Submission, after: str | None = None
) -> tuple[Job, list[RunDir], Path, snapshot.Snapshot]:
    """Create the run folders of a job. A sweep's members share code and script.

    Returns:
        The job with its real folders, the run folders, the batch script, and the snapshot of the code.
    """
    config, script = members[0].config, client.SCRIPT[job.cluster.scheduler]
    results, study = Path(config.paths.results), config.study
    with no_empty_folders(results / job.name):
        base = run or (RunDir(results / job.name / study) if study else create(results, job.name))
    # the first of code, code-2, ... that no earlier job has
    names = (f"code-{number}" if number > 1 else "code" for number in itertools.count(1))
    code = next(folder for name in names if not (folder := base.path / name).exists())
    if run:
        submission.callback(remove, claim_part(code))
        if config.from_scratch:
            submission.callback(move_back, run, move_aside(run))
    elif not study:
        submission.add_run(base)
    runs = [base]
    if job.members is not None:
        runs = [RunDir(base.path.with_name(f"{base.id}-{m}")) for m in job.members]
    job = replace(job, run=str(base.path), code=str(code))
    code_snapshot = snapshot.take_snapshot(ROOT, code, results, config.program.copied)
    job = replace(job, features=job.features.prepare(results, code))
    write_atomic(base.path / script, render.render(job))
    for r, member in zip(runs, members, strict=True):
        if r is not base:
            submission.add_run(claim(r.path))
        write_run(r, job, member, code_snapshot, after)
        remember(r.path)
    remember_script(base.path / script)
    if job.members is not None:
        point_latest(results, runs[0].path)
    submission.mark_written()
    return job, runs, base.path / script, code_snapshot


def write_run(
    run: RunDir, job: Job, member: Member, code_snapshot: snapshot.Snapshot, after: str | None
) -> None:
    """Write the frozen configuration and the first run.json."""
    cluster = replace(member.config.cluster, signal_seconds=job.cluster.signal_seconds)
    monitor = member.config.monitor
    if monitor.progress == "auto":  # mpirun gives the ranks of a job a terminal, and a bar would fill the log
        monitor = replace(monitor, progress="plain")
    config = replace(member.config, cluster=cluster, monitor=monitor)
    write_frozen(run, config, member.overrides)
    run.update(
        state="queued",
        framework=job.framework if job.command else member.config.framework,
        strategy=job.layout.strategy,
        launch=job.launch,
        cluster=job.cluster.name,
        nodes=job.nodes,
        world_size=job.world_size,
        **({"pack": job.pack} if job.pack > 1 else {}),
        gpus=count_gpus(job) / job.pack if job.gpus else 0,
        commit=code_snapshot.commit,
        dirty=code_snapshot.dirty,
        submitted=now(),
        submission=None,
        after=after,
    )


def record_job(runs: Sequence[RunDir], members: Sequence[int] | None, job_id: str) -> None:
    """Write a job id to jobs.txt in place of `UNCLEAR`, or remove that entry if it is "". `members` are numbers of the array.

    The ids are not in run.json, which only rank 0 writes as soon as the job may run.
    """
    for run, member in itertools.zip_longest(runs, members or ()):
        before = read_content(run.jobs) or b""
        words = [word for word in before.decode(errors="replace").split() if word != client.UNCLEAR]
        new = job_id if member is None or job_id in ("", client.UNCLEAR) else f"{job_id}_{member}"
        write_atomic(run.jobs, "".join(f"{word}\n" for word in [*words, new] if word))


def submit_recorded(
    kind: str,
    script: Path,
    links: int,
    runs: Sequence[RunDir],
    members: Sequence[int] | None,
    array: str | None = None,
    ok: Sequence[str] = (),
) -> list[str]:
    """Submit a chain of jobs, record them in the run folders, and return the job ids.

    Raises the errors of `client.submit_chain`. After an UnclearError, the folders record that a job may be queued.
    """
    try:
        return client.submit_chain(kind, script, links, partial(record_job, runs, members), array, ok)
    except UnclearError as error:
        if not error.job_lost:
            record_job(runs, None, "")
        for run in runs:
            if run.read_info().get("state") == "queued":
                run.update_or_defer(submission=str(error))
        folder = display_path(runs[0].path) + (f" and {len(runs) - 1} more" if len(runs) > 1 else "")
        raise error.add_sentence(f"The run folder is kept: {folder}") from None


def resubmit(runs: Sequence[find_runs.RunEntry], results: Path, trust: bool) -> str:
    """Submit a run, or members of one sweep, again, and return the job ids.

    `trust` accepts a script that this user has not submitted from its folder.

    Raises CheckpointError: a file of a run folder is a link. Raises SubmitError, SchedulerError: the nodes would not find a run
    folder, or the submission was refused, and the runs are unchanged. Raises UnclearError: a job may be queued.
    """
    folders = [r.folder for r in runs]
    for run in folders:
        refuse_links(run)
        if not os.access(run.path, os.W_OK):
            raise SubmitError(f"the run folder {run.path} can't be written; nothing was submitted.")
        disk = _cluster_key(run, "local_disk", "")
        if is_lost(run.path, disk):  # such as the folder of an interactive job
            raise SubmitError(
                f"{run.path} is below cluster.local_disk={disk}, and each node has its own {disk}, where the job would not find it; "
                f"move it to a folder that all nodes share, then use {resume_command(run, path='FOLDER')}."
            )
    script, kind = common_script(runs), str(runs[0].scheduler)
    refuse_foreign_script(script, trust)
    _, ok = find_dependency(folders[0].read_info().get("after"), kind, results)
    text = script.read_text(errors="replace")
    tasks = [find_runs.array_task(r) for r in runs if r.member is not None]
    limit = re.search(r"(?m)^#(?:SBATCH --array=|PBS -J ).*(%\d+)$", text) if len({*tasks}) > 1 else None
    array = ranges({*tasks}) + (limit[1] if limit else "") if tasks else None
    with all_or_nothing(results, folders) as submission:
        for run in folders:
            run.update(state="queued", submission=None)
        submission.mark_written()
        links = _cluster_key(folders[0], "chain", 1)
        jobs = submit_recorded(kind, script, links, folders, tasks or None, array, ok)
    print("".join(f"note: {note}\n" for note in clean_environment.notes(text)), end="", flush=True)
    return " -> ".join(jobs)


def _cluster_key(run: RunDir, key: str, otherwise: Any) -> Any:
    """Return a key of the section `cluster` of a run, or `otherwise`."""
    with suppress(CheckpointError, KeyError, TypeError):
        return type(otherwise)(read_frozen(run)["cluster"][key])
    return otherwise


def common_script(runs: Sequence[find_runs.RunEntry]) -> Path:
    """Return the batch script that all runs share. Raises SubmitError without one, or if a run was moved."""
    for run in runs:
        if run.script is None:
            raise SubmitError(find_runs.resume_message(run))
        try:
            text = run.script.read_text(errors="replace")
        except OSError as error:
            raise SubmitError(f"{run.script} can't be read: {error.strerror}.") from None
        if named := re.search(r"^RUN=(.*)$", text, re.MULTILINE):
            written = re.sub(r"-\$\w+$", "", " ".join(shlex.split(named[1])))
            base = run.folder.path if run.member is None else run.script.parent
            if os.path.realpath(written) != os.path.realpath(base):
                raise SubmitError(
                    f"{run.folder.path} was moved: its batch script still trains in {written}; resume it with "
                    f"`{resume_command(run.folder)}`."
                )
    scripts = {r.script for r in runs if r.script}
    if len(scripts) > 1:
        raise SubmitError(
            f"these are several submissions ({listed(r.folder.id for r in runs)}): name one of them."
        )
    return scripts.pop()


def run_in_allocation(request: Request, member: Member, run: RunDir | None, chosen: Sequence[str]) -> int:
    """Run the batch script in this allocation, and return its exit code."""
    with all_or_nothing(Path(request.config.paths.results), [run] if run else []) as submission:
        job, [run], script, _ = make_folders(request.job, [member], run, submission)
        record_job([run], None, str(running_job()))
        record(run.path, "job", str(running_job()))
    ranks = f"{job.nodes} nodes, {job.world_size} ranks"
    print(f"In this allocation: {ranks}. Run folder: {run.path}", flush=True)
    environ = clean_environment.allocation_environment(job.ranks, job.cpus_per_task, chosen)
    environ[ALLOCATION] = str(running_job())
    process = subprocess.Popen(["bash", str(script)], env=environ)
    while process.returncode is None:
        with suppress(KeyboardInterrupt):  # the script gets Ctrl-C too, and signals the ranks to save
            process.wait()
    return 128 - process.returncode if process.returncode < 0 else process.returncode


def wait_for_jobs(kind: str, job_ids: Sequence[str], poll: float = 5.0) -> None:
    """Wait until none of the jobs is queued or running.

    Raises SchedulerError: the scheduler did not answer for a long time. Raises SubmitInterrupted: Ctrl-C was pressed; the jobs
    continue.
    """
    pause, looks = min(0.5, poll), poll_active(kind, job_ids)
    try:
        while next(looks):
            time.sleep(pause)
            pause = min(1.3 * pause, poll)
    except KeyboardInterrupt:
        job, verb, it = ("job", "continues", "it") if len(job_ids) == 1 else ("jobs", "continue", "them")
        raise SubmitInterrupted(
            f"interrupted: no longer waiting; {job} {listed(job_ids)} {verb}. To stop {it}: src/jobs.py cancel."
        ) from None


def format_job(job: Job) -> str:
    """Return the resolved numbers of a job, one per line."""
    gpu = (job.cluster.gpu_type or "") + (" " if job.cluster.gpu_type else "")
    per_node = str(job.devices[0]) if job.even else " + ".join(map(str, job.devices))
    limit = units.clock(job.time) if job.time else "no limit"
    memory = f"{units.short_size(job.mem)} per node" if job.mem else "all of each node"
    rows = {
        "cluster": f"{job.cluster.name} ({job.cluster.scheduler})",
        "nodes": f"{job.fewest} to {job.nodes}" if job.elastic else job.nodes,
        "GPUs": f"{gpu}{per_node} per node, {sum(job.devices)} in all"
        if job.gpus
        else "none (trainer.accelerator=cpu)",
        "tasks": f"{job.tasks} ({job.launch})",
        "CPUs": f"{job.cpus_per_task} per rank, {job.cpus_per_node} per node",
        "memory": "the scheduler's default" if job.mem is None else memory,
        "time": "the scheduler's default" if job.time is None else limit,
        "framework": job.framework,
        "strategy": job.layout.strategy,
        "ranks": job.world_size,
        "batch": f"{job.batch} in all, {job.batch / job.world_size:g} per rank"
        if job.batch
        else "each rank reads those of its loader",
    }
    if job.command:
        rows = {k: v for k, v in rows.items() if k not in ("framework", "strategy", "batch")}
        rows["ranks"] = f"{rows['ranks']} (program.processes={job.layout.strategy})"
        rows["program"] = one_line(shlex.join(job.command))
    if job.container.name != "none":
        rows["container"] = f"{job.container.name} {job.container.image}"
    if job.members is not None:
        throttle = f", {job.cluster.max_running} at once" if job.cluster.max_running else ""
        packed = f", {job.pack} in each of {len(job.array)} jobs" if job.pack > 1 else ""
        rows["array"] = f"{len(job.members)} members{packed}{throttle}"
    if job.cluster.chain > 1:
        rows["chain"] = f"{job.cluster.chain} jobs in a row"
    if hours := describe_gpu_hours(job):
        rows["GPU hours"] = hours
    return "\n".join(f"{k:<12}{v}" for k, v in rows.items())


def format_submission(
    job_ids: Sequence[str], job: Job, runs: Sequence[Path], log: str, notes: Sequence[str]
) -> str:
    """Return what a submission prints: the job, its folder and log, and the next commands."""
    many = len(runs) > 1
    folder = f"{job.run}-*" if many else display_path(runs[0])
    name, results = runs[0].name.rpartition("-")[0] if many else runs[0].name, runs[0].parent.parent
    nodes = f"{job.nodes} node{'s' if job.nodes > 1 else ''}, {job.world_size} rank{'s' if job.world_size > 1 else ''}"
    array = f", an array of {len(job.array)}" if many else ""
    array += f" for {len(runs)} members" if job.pack > 1 else ""
    rows = [("Run folder:", folder if many else shlex.quote(folder)), ("Log:", display_path(Path(log)))]
    rows += [("GPU hours:", describe_gpu_hours(job))] if gpu_hours(job)[0] else []
    verbs = {"Next:": "status", "": "logs -f", " ": "cancel"}
    rows += [(title, find_runs.jobs_command(verb, name, results)) for title, verb in verbs.items()]
    lines = [f"Submitted job {' -> '.join(job_ids)} to {job.cluster.name}: {nodes}{array}"]
    lines += [f"{title:<13}{text}" for title, text in rows]
    return fit("\n".join(lines + [f"note: {n}" for n in notes]), terminal_width(), 13)
