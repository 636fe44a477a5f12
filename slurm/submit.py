"""Make the run folder, submit, say so; or run the same script in an allocation that is there already."""

import dataclasses
import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm import dry_run, git, render, scheduler, snapshot
from slurm.job import Job
from src.errors import SubmitError
from src.rundir import ROOT, RunDir, create, now, point_latest, write_atomic
from src.schema import Config
from src.start import freeze
from src.trust import remember_script

Tree = Mapping[str, Any]


def submit(
    trees: Sequence[Tree],
    overrides: Sequence[Sequence[str]],
    job: Job,
    run: RunDir | None,
    configs: Sequence[Config],
    notes: Sequence[str],
) -> list[float | None]:
    """Submit a checked job and print what comes next; see `slurm.start.start`.

    Raises:
        SubmitError: the scheduler refused it; new folders are removed again.
    """
    results = Path(configs[0].paths.results)
    trees = [for_a_log(t) for t in trees]
    latest = _latest(results)
    job, runs, taken = make_folders(trees, overrides, job, run, results)
    script = Path(job.code).parent / scheduler.SCRIPT[job.cluster.scheduler]
    try:
        job_ids = chained(job.cluster.scheduler, script, job.cluster.chain)
    except SubmitError:
        if run is None:
            for folder in {Path(job.run), *(r.path for r in runs)}:
                shutil.rmtree(folder, ignore_errors=True)
            _restore(results, latest)
        raise
    record(runs, job, job_ids)
    log = render.log_path(job).replace("%j", job_ids[0]).replace("%A_%a", f"{job_ids[0]}_%a") + ".out"
    print(dry_run.submitted(job_ids, job, [r.path for r in runs], log, [*notes, *taken.notes]), flush=True)
    if not configs[0].wait:
        return [None] * len(runs)
    wait_for(job.cluster.scheduler, job_ids)
    return [metric(r, c) for r, c in zip(runs, configs, strict=True)]


def make_folders(
    trees: Sequence[Tree], overrides: Sequence[Sequence[str]], job: Job, run: RunDir | None, results: Path
) -> tuple[Job, list[RunDir], snapshot.Snapshot]:
    """The run folders of a job: frozen configuration, code, script. A sweep's members share code and script.

    Returns:
        The job with its real folders, the run folders, what the snapshot is of.
    """
    asked = git.Question(ROOT)
    base = run or create(results, job.name)
    runs = (
        [base]
        if job.members is None
        else [RunDir(base.path.with_name(f"{base.id}-{m}")) for m in job.members]
    )
    job = dataclasses.replace(job, run=str(base.path), code=str(fresh(base.path / "code")))
    write_atomic(base.path / scheduler.SCRIPT[job.cluster.scheduler], render.render(job))
    remember_script(base.path / scheduler.SCRIPT[job.cluster.scheduler])
    taken = snapshot.take(ROOT, Path(job.code), results, asked)
    for r, tree, typed in zip(runs, trees, overrides, strict=True):
        r.path.mkdir(exist_ok=True)
        freeze(r, tree, typed)
        r.update(
            state="queued",
            framework=tree["framework"],
            strategy=job.strategy,
            launch=job.launch,
            cluster=job.cluster.name,
            nodes=job.nodes,
            world_size=job.world_size,
            commit=taken.commit,
            dirty=taken.dirty,
            submitted=now(),
        )
    if job.members is not None:
        point_latest(results, runs[0].path)
    return job, runs, taken


def for_a_log(tree: Tree) -> Tree:
    """The configuration for a job that nobody watches: mpirun gives its ranks a terminal, and a bar would fill the log."""
    monitor = tree["monitor"]
    progress = "plain" if monitor["progress"] == "auto" else monitor["progress"]
    return {**tree, "monitor": {**monitor, "progress": progress}}


def fresh(code: Path) -> Path:
    """A folder for the snapshot that no job of an earlier submission is reading: code, code-2, code-3, ..."""
    folder, number = code, 1
    while folder.exists():
        number += 1
        folder = code.with_name(f"{code.name}-{number}")
    return folder


def chained(kind: str, script: Path, links: int) -> list[str]:
    """Submit a script `links` times, each to begin when the one before has ended, however it ended."""
    job_ids: list[str] = []
    for _ in range(links):
        job_ids.append(scheduler.submit_script(kind, script, after=job_ids[-1] if job_ids else None))
    return job_ids


def record(runs: Sequence[RunDir], job: Job, job_ids: Sequence[str]) -> None:
    """Append the job ids to jobs.txt: run.json belongs to rank 0 as soon as the job may run."""
    for number, run in zip(job.members or [None], runs, strict=True):
        with open(run.path / "jobs.txt", "a") as file:
            file.writelines(f"{i if number is None else f'{i}_{number}'}\n" for i in job_ids)


def run_in_allocation(tree: Tree, overrides: Sequence[str], job: Job, run: RunDir | None) -> int:
    """Run the batch script here and now, in the foreground; returns the exit code of training."""
    job, [run], _ = make_folders([tree], [overrides], job, run, Path(str(job.run)).parent.parent)
    record([run], job, [os.environ.get("SLURM_JOB_ID") or os.environ["PBS_JOBID"]])
    print(
        f"In this allocation: {job.nodes} nodes, {job.world_size} ranks. Run folder: {run.path}", flush=True
    )
    script = Path(job.code).parent / scheduler.SCRIPT[job.cluster.scheduler]
    process = subprocess.Popen(["bash", str(script)])
    while True:
        try:
            code = process.wait()
            return 128 - code if code < 0 else code
        except KeyboardInterrupt:  # Ctrl-C reaches the script too, which tells the ranks to save
            continue


def wait_for(kind: str, job_ids: Sequence[str], poll: float = 5.0) -> None:
    """Return when none of the jobs is queued or running any more."""
    from slurm import queue

    while any(queue.alive(s) for s in queue.states(kind, job_ids).values()):
        time.sleep(poll)


def metric(run: RunDir, config: Config) -> float | None:
    """`checkpoint.monitor` as the run's end recorded it.

    Raises:
        SubmitError: where the run did not complete.
    """
    info = run.info()
    if info.get("state") != "completed":
        raise SubmitError(
            f"{run.id} is {info.get('state')}, not completed: it has no result; look at its log."
        )
    return info.get("metrics", {}).get(config.checkpoint.monitor)


def _latest(results: Path) -> Path | None:
    link = results / "latest"
    return link.resolve() if link.is_symlink() else None


def _restore(results: Path, latest: Path | None) -> None:
    if latest is not None:
        point_latest(results, latest)
    else:
        (results / "latest").unlink(missing_ok=True)
