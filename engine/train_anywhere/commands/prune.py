"""Delete run folders: never of a run that may still train, and never a folder that this user's runs did not make."""

import glob
import sys
from collections.abc import Sequence
from contextlib import suppress
from operator import itemgetter
from pathlib import Path

from train_anywhere.errors import CheckpointError, SchedulerError, SubmitError
from train_anywhere.files.atomic import read_text
from train_anywhere.files.terminal.printable import one_line
from train_anywhere.files.terminal.table import Column, format_table
from train_anywhere.runs.folder import RunDir, delete, point_latest, sweep_folder
from train_anywhere.runs.lock import RunLock
from train_anywhere.runs.summary import display_path
from train_anywhere.slurm.scheduler.client import QUEUE
from train_anywhere.slurm.status.find_runs import RunEntry, find_all, query_scheduler
from train_anywhere.slurm.status.gather import Report


def prune(pairs: Sequence[tuple[RunEntry, Report]], yes: bool) -> int:
    """Delete the folders of runs after asking, unless `yes`; print why one is kept. Return 1 if one could not be deleted.

    Raises SubmitError: no folder can be deleted, or standard input is not a terminal and `yes` is False.
    """
    used = runs_in_use([run.folder.path for run, _ in pairs])
    reasons = {run.folder.path: used.get(run.folder.path) or keep_reason(run, one) for run, one in pairs}
    for path, reason in reasons.items():
        if reason:
            print(one_line(f"kept: {path.name}: {reason}"), file=sys.stderr)
    chosen = [(run.folder, report.state) for run, report in pairs if not reasons[run.folder.path]]
    if not chosen:
        raise SubmitError("none of these runs can be deleted.")
    rows = [(display_path(run.path), state, f"{size_of(run.path) / 2**20:,.1f} MiB") for run, state in chosen]
    columns = [Column(title, itemgetter(at)) for at, title in enumerate(("run folder", "state", "size"))]
    print(format_table(columns, rows))
    count = f"{len(chosen)} run folder{'s'[: len(chosen) > 1]}"
    if not yes:
        if not sys.stdin.isatty():
            raise SubmitError("prune asks before it deletes, and this is not a terminal: add --yes.")
        print(f"Delete {count} with all checkpoints? [y/N] ", end="", flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            print("Nothing was deleted.")
            return 0
    deleted = [folder for folder, _ in chosen if delete(folder)]
    for sweep in {sweep_folder(folder) for folder in deleted}:
        members = sweep.parent.glob(f"{glob.escape(sweep.name)}-*")
        # a run, or a search with its results, is kept
        kept = [*members, *filter(Path.exists, (sweep / "config.yaml", sweep / "study.json"))]
        if sweep.is_dir() and not kept:
            delete(RunDir(sweep))
    for results in {folder.path.parent.parent for folder in deleted}:
        latest = results / "latest"
        if latest.is_symlink() and not latest.exists():
            with suppress(OSError, SubmitError):  # a new run sets it again
                point_latest(results, None)
                point_latest(results, find_all(results, 1)[0].folder.path)
    print(f"Deleted {len(deleted)} of {len(chosen)}.")
    return int(len(deleted) < len(chosen))


def runs_in_use(paths: Sequence[Path]) -> dict[Path, str]:
    """Return why run folders must be kept that the job of another run names in its configuration."""
    entries = [run for top in {path.parents[1] for path in paths} for run in find_all(top)]
    pairs = [
        (path, run)
        for run in entries
        if run.scheduler and run.folder.read_state() in ("queued", "running")
        for text in [read_text(run.folder.config)]
        for path in paths
        if path != run.folder.path and str(path) in text
    ]
    try:
        found, known = query_scheduler([run for _, run in pairs])
    except SchedulerError as error:
        why = "whether the job of {} uses it is not known: {}"
        return {path: why.format(run.folder.id, error) for path, run in pairs}
    return {
        path: f"{run.folder.id} names it, and its job is queued or running, or may be"
        for (path, run), one in zip(pairs, found, strict=True)
        if one.unclear or one.trouble or known.active(one.job_ids)
    }


def keep_reason(run: RunEntry, report: Report) -> str:
    """Return why a run folder must not be deleted; empty if it may."""
    if run.unclear and not report.alive:
        return f"it may have a job whose id is unknown: look at `{QUEUE[str(run.scheduler)]}`"
    if report.trouble or report.state in ("", "unknown"):
        return report.trouble or "its state is not known"
    if report.alive:
        return f"it is {report.state}"
    try:
        RunLock(run.folder).refuse_if_held()
    except CheckpointError as error:
        return str(error)
    return ""


def size_of(folder: Path) -> int:
    """Return the bytes of all files in a folder; links are not followed."""
    size = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # another process has just removed it
            size += path.lstat().st_size
    return size
