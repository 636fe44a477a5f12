"""What to type next, with a run as `jobs.py` finds it from here."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from train_anywhere.files import ROOT
from train_anywhere.runs.summary import command_path, display_path, train_command
from train_anywhere.slurm.scheduler import queue
from train_anywhere.slurm.status import local_runs
from train_anywhere.slurm.status.find_runs import Submitted
from train_anywhere.slurm.status.run_status import FAILED, Report
from train_anywhere.slurm.status.sources.pending import Pending


def jobs(verb: str, name: str, results: Path) -> str:
    """`python src/jobs.py VERB NAME`, with the folder of the runs where it is not the usual one."""
    program = f"{command_path('python')} {shlex.quote(display_path(ROOT / 'src' / 'jobs.py'))}"
    there = "" if results == ROOT / "results" else f" --results {shlex.quote(display_path(results))}"
    return f"{program} {verb} {shlex.quote(name)}{there}"


def release(run: Submitted, waits: Pending | None) -> tuple[str, ...]:
    """Return the command that lets a held job start, or nothing."""
    if not waits or not waits.held:
        return ()
    return (
        f"{'qrls' if run.scheduler == 'pbs' else 'scontrol release'} {shlex.quote(queue.name_of(run.job_ids[-1]))}",
    )


def of_run(run: Submitted, state: str, alive: bool, waits: Pending | None = None) -> tuple[str, ...]:
    """The commands that suit the state of a run."""
    path, results = shlex.quote(display_path(run.folder.path)), run.folder.path.parent.parent
    if alive and run.scheduler is None:
        pid = local_runs.process(run)
        return (f"kill {pid}",) if pid else ()
    if alive:
        return (
            *release(run, waits),
            jobs("logs -f", run.folder.id, results),
            jobs("cancel", run.folder.id, results),
        )
    if state == "completed":
        return (f"{command_path('python')} {shlex.quote(display_path(ROOT / 'src' / 'evaluate.py'))} {path}",)
    shown = (jobs("logs", run.folder.id, results),) if run.logs() else ()
    if run.script is None:
        return (*shown, f"{train_command()} resume={path}")
    return (*shown, jobs("resubmit", run.folder.id, results))


def of_sweep(sweep: str, reports: Sequence[Report]) -> tuple[str, ...]:
    """The same for all members of one."""
    results = reports[0].path.parent.parent
    alive = any(report.alive for report in reports)
    verbs = ["logs -f", "cancel"] if alive else ["best"]
    verbs += ["resubmit --failed"] if any(report.state in FAILED for report in reports) else []
    held = ",".join(report.jobs[-1] for report in reports if report.pending and report.pending.held)
    release = (f"scontrol release {held}",) if held else ()
    return (*release, *(jobs(verb, sweep, results) for verb in verbs))
