"""Format what a dry run and a submission print."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from train_anywhere.errors import SubmitError
from train_anywhere.files import ROOT
from train_anywhere.files.terminal.printable import fit, one_line, terminal_width
from train_anywhere.runs.summary import command_path, display_path
from train_anywhere.slurm.script import gpu_hours, units
from train_anywhere.slurm.script.job import Job
from train_anywhere.slurm.status import find_runs


def format_job(job: Job) -> str:
    """Return the resolved numbers of a job, one per line."""
    gpu = (job.cluster.gpu_type or "") + (" " if job.cluster.gpu_type else "")
    per_node = str(job.devices[0]) if job.even else " + ".join(map(str, job.devices))
    rows = {
        "cluster": f"{job.cluster.name} ({job.cluster.scheduler})",
        "nodes": f"{job.fewest} to {job.nodes}" if job.elastic else job.nodes,
        "GPUs": f"{gpu}{per_node} per node, {sum(job.devices)} in all"
        if job.gpus
        else "none (trainer.accelerator=cpu)",
        "tasks": f"{job.tasks} ({job.launch})",
        "CPUs": f"{job.cpus_per_task} per rank, {job.cpus_per_task * max(job.ranks)} per node",
        "memory": _memory(job.mem),
        "time": _time(job.time),
        "framework": job.framework,
        "strategy": job.strategy,
        "ranks": job.world_size,
        "batch": f"{job.batch} in all, {job.batch / job.world_size:g} per rank",
    }
    if job.command:
        rows = {k: v for k, v in rows.items() if k not in ("framework", "strategy", "batch")}
        rows["ranks"] = f"{rows['ranks']} (program.processes={job.strategy})"
        rows["program"] = one_line(shlex.join(job.command))
    if job.container.name != "none":
        rows["container"] = f"{job.container.name} {job.container.image}"
    if job.members is not None:
        throttle = f", {job.cluster.max_running} at once" if job.cluster.max_running else ""
        rows["array"] = f"{len(job.members)} members{throttle}"
    if job.cluster.chain > 1:
        rows["chain"] = f"{job.cluster.chain} jobs in a row"
    if hours := gpu_hours.describe(job):
        rows["GPU hours"] = hours
    return "\n".join(f"{k:<12}{v}" for k, v in rows.items())


def _memory(mem: int | None) -> str:
    if mem is None:
        return "the scheduler's default"
    return f"{units.short_size(mem)} per node" if mem else "all of each node"


def _time(time: int | None) -> str:
    if time is None:
        return "the scheduler's default"
    return units.clock(time) if time else "no limit"


def after_notes(after: str | None, results: Path) -> list[str]:
    """Return a note about `after=RUN`, without a query to the scheduler. Raises SubmitError: there is no such run."""
    if after is None:
        return []
    try:
        find_runs.find(find_runs.strip_root(after), results)
    except SubmitError as error:
        raise SubmitError(f"after={find_runs.strip_root(after)}: {error}") from None
    return [f"it starts when {display_path(Path(after))} is complete (after=)."]


def format_dry_run(script: str, job: Job, notes: Sequence[str]) -> str:
    """Return what a dry run prints. Problems are raised as an error afterwards."""
    parts = [script, format_job(job)]
    if notes:
        parts.append("\n".join(f"note: {n}" for n in notes))
    return "\n\n".join([*parts, "dry run: nothing was written or submitted."])


def format_submission(
    job_ids: Sequence[str], job: Job, runs: Sequence[Path], log: str, notes: Sequence[str]
) -> str:
    """Return what a submission prints: the job, its folder and log, and the next commands."""
    jobs = f"{command_path('python')} {shlex.quote(display_path(ROOT / 'src' / 'jobs.py'))}"
    many = len(runs) > 1
    folder = f"{job.run}-*" if many else display_path(runs[0])
    name = runs[0].name.rpartition("-")[0] if many else runs[0].name
    results = runs[0].parent.parent
    name += "" if results == ROOT / "results" else f" --results {shlex.quote(display_path(results))}"
    nodes = f"{job.nodes} node{'s' if job.nodes > 1 else ''}, {job.world_size} rank{'s' if job.world_size > 1 else ''}"
    array = f", an array of {len(runs)}" if many else ""
    rows = {
        f"Submitted job {' -> '.join(job_ids)}": f"to {job.cluster.name}: {nodes}{array}",
        "Run folder": folder if many else shlex.quote(folder),
        "Log": display_path(Path(log)),
        **({"GPU hours": gpu_hours.describe(job)} if gpu_hours.gpu_hours(job) else {}),
        "Next": f"{jobs} status {name}",
        "": f"{jobs} logs -f {name}",
        " ": f"{jobs} cancel {name}",
    }
    [(first, what), *rest] = rows.items()
    lines = [f"{first} {what}"] + [f"{k + ':' if k.strip() else '':<13}{v}" for k, v in rest]
    return fit("\n".join(lines + [f"note: {n}" for n in notes]), terminal_width(), 13)
