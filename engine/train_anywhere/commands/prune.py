"""Delete run folders: never of a run that may still train, and never a folder that this user's runs did not make."""

import sys
from collections.abc import Sequence

from train_anywhere.errors import CheckpointError, SubmitError
from train_anywhere.files.terminal.printable import one_line
from train_anywhere.runs.folder import delete
from train_anywhere.runs.lock import RunLock
from train_anywhere.runs.summary import display_path
from train_anywhere.slurm.status.find_runs import RunEntry
from train_anywhere.slurm.status.run_status import Report


def prune(pairs: Sequence[tuple[RunEntry, Report]], yes: bool) -> None:
    """Delete the folders of runs, after asking; a line says why one is kept.

    Args:
        pairs: the selected runs, with what is known of them.
        yes: do not ask.

    Raises:
        SubmitError: there is nothing to delete, or nobody can be asked.
    """
    reasons = {run.folder.path: keep_reason(run, report) for run, report in pairs}
    for path, reason in reasons.items():
        if reason:
            print(one_line(f"kept: {path.name}: {reason}"), file=sys.stderr)
    gone = [run for run, _ in pairs if not reasons[run.folder.path]]
    if not gone:
        raise SubmitError("none of these runs can be deleted.")
    for run, report in pairs:
        if run in gone:
            print(
                one_line(f"{display_path(run.folder.path)}  {report.state}  {size_of(run) / 2**20:,.0f} MiB")
            )
    if not yes and not confirm(
        f"Delete {len(gone)} run folder{'s'[: len(gone) > 1]} with all checkpoints? [y/N] "
    ):
        print("Nothing was deleted.")
        return
    deleted = [run for run in gone if delete(run.folder)]
    print(f"Deleted {len(deleted)} of {len(gone)}.")


def keep_reason(run: RunEntry, report: Report) -> str:
    """Return why a run folder must not be deleted; empty if it may."""
    if report.trouble or report.state in ("", "unknown"):
        return report.trouble or "its state is not known"
    if report.alive or run.unclear:
        return f"it is {report.state}" if report.alive else "it may have a job whose id is unknown"
    try:
        RunLock(run.folder).refuse_if_held()
    except CheckpointError as error:
        return str(error)
    return ""


def size_of(run: RunEntry) -> int:
    """Return the bytes of all files in a run folder; links are not followed."""
    return sum(path.lstat().st_size for path in run.folder.path.rglob("*") if not path.is_dir())


def confirm(question: str) -> bool:
    """Ask on the terminal.

    Raises:
        SubmitError: there is no terminal.
    """
    if not sys.stdin.isatty():
        raise SubmitError("prune asks before it deletes, and this is not a terminal: add --yes.")
    print(question, end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
