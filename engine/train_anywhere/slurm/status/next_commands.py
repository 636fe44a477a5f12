"""Suggest the next commands for a run, with paths relative to the current folder."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from train_anywhere.files import ROOT
from train_anywhere.runs.summary import command_path, display_path, is_program, resume_command
from train_anywhere.slurm.scheduler import queue
from train_anywhere.slurm.scheduler.client import QUEUE
from train_anywhere.slurm.status import local_runs
from train_anywhere.slurm.status.find_runs import RunEntry
from train_anywhere.slurm.status.run_status import FAILED, Report
from train_anywhere.slurm.status.sources.pending import PendingJob


def jobs_command(verb: str, name: str, results: Path) -> str:
    """Return `python src/jobs.py VERB NAME`, with `--results` if the runs are not in the default folder."""
    program = f"{command_path('python')} {shlex.quote(display_path(ROOT / 'src' / 'jobs.py'))}"
    there = "" if results == ROOT / "results" else f" --results {shlex.quote(display_path(results))}"
    return f"{program} {verb} {shlex.quote(name)}{there}"


def release_command(run: RunEntry, waits: PendingJob | None) -> tuple[str, ...]:
    """Return the command that lets a held job start, or nothing."""
    if not waits or not waits.is_held:
        return ()
    return (
        f"{'qrls' if run.scheduler == 'pbs' else 'scontrol release'} {shlex.quote(queue.native_id(run.job_ids[-1]))}",
    )


def run_commands(run: RunEntry, state: str, alive: bool, waits: PendingJob | None = None) -> tuple[str, ...]:
    """Return the commands that fit the state of a run."""
    path, results = shlex.quote(display_path(run.folder.path)), run.folder.path.parent.parent
    if alive and run.scheduler is None:
        return (jobs_command("cancel", run.folder.id, results),) if local_runs.training_pid(run) else ()
    if alive:
        shown = (jobs_command(verb, run.folder.id, results) for verb in ("logs -f", "cancel"))
        return (*release_command(run, waits), *shown)
    if state == "completed" and is_program(run.folder):
        return ()
    if state == "completed":
        return (f"{command_path('python')} {shlex.quote(display_path(ROOT / 'src' / 'evaluate.py'))} {path}",)
    logs = (jobs_command("logs", run.folder.id, results),) if run.logs() else ()
    if run.unclear:
        return (*logs, QUEUE[str(run.scheduler)], jobs_command("status", run.folder.id, results))
    if run.script is None:
        return (*logs, resume_command(run.folder))
    return (*logs, jobs_command("resubmit", run.folder.id, results))


def sweep_commands(sweep: str, reports: Sequence[Report]) -> tuple[str, ...]:
    """Return the commands that fit the states of the members of a sweep."""
    results = reports[0].path.parent.parent
    alive = any(report.alive for report in reports)
    verbs = ["logs -f", "cancel"] if alive else ["best"]
    verbs += ["resubmit --failed"] if any(report.state in FAILED for report in reports) else []
    held = ",".join(report.jobs[-1] for report in reports if report.pending and report.pending.is_held)
    release = (f"scontrol release {held}",) if held else ()
    return (*release, *(jobs_command(verb, sweep, results) for verb in verbs))
