"""Submit runs again, from the newest checkpoint, and the trials of a search."""

import os
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from train_anywhere.distributed.topology import ranges
from train_anywhere.errors import CheckpointError, SubmitError, listed
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.reopen.frozen import read_frozen, refuse_links
from train_anywhere.runs.reopen.trust import refuse_foreign_script
from train_anywhere.runs.summary import resume_command
from train_anywhere.slurm.rules.local_rules import is_lost
from train_anywhere.slurm.script import clean_environment
from train_anywhere.slurm.status import find_runs, local_runs
from train_anywhere.slurm.status.dependency import find_dependency
from train_anywhere.slurm.status.find_runs import RunEntry
from train_anywhere.slurm.submission.rollback import Submission
from train_anywhere.slurm.submission.submit import submit_recorded


def resubmit(runs: Sequence[RunEntry], results: Path, trust: bool) -> str:
    """Submit a run, or members of one sweep, again, and return the job ids.

    `trust` accepts a script that this user has not submitted from its folder.

    Raises CheckpointError: a file of a run folder is a link. Raises SubmitError, SchedulerError: the nodes would not find a run
    folder, or the submission was refused, and the runs are unchanged. Raises UnclearError: a job may be queued.
    """
    for submitted in runs:
        refuse_links(submitted.folder)
        if not os.access(submitted.folder.path, os.W_OK):
            raise SubmitError(
                f"the run folder {submitted.folder.path} can't be written; nothing was submitted."
            )
        path, disk = submitted.folder.path, _cluster_key(submitted.folder, "local_disk", "")
        if is_lost(path, disk):  # such as the folder of an interactive job
            raise SubmitError(
                f"{path} is below cluster.local_disk={disk}, and each node has its own {disk}, where the job would not find it; move it "
                f"to a folder that all nodes share, then use {resume_command(submitted.folder, path='FOLDER')}."
            )
    script, kind = common_script(runs), str(runs[0].scheduler)
    refuse_foreign_script(script, trust)
    followed = find_dependency(runs[0].folder.read_info().get("after"), kind, results)
    folders = [r.folder for r in runs]
    tasks = [find_runs.array_task(r) for r in runs if r.member is not None]
    with Submission(results, folders) as submission:
        for run in folders:
            run.update(state="queued", submission=None)
        submission.mark_written()
        links, ok = _cluster_key(folders[0], "chain", 1), followed.jobs if followed else ()
        limit = re.search(r"(?m)^#(?:SBATCH --array=|PBS -J ).*(%\d+)$", script.read_text(errors="replace"))
        numbers = sorted({*tasks})
        array = ranges(numbers) + (limit[1] if limit and len(numbers) > 1 else "") if numbers else None
        jobs = submit_recorded(kind, script, links, folders, tasks or None, array, ok)
    notes = clean_environment.notes(script.read_text(errors="replace"))
    print("".join(f"note: {note}\n" for note in notes), end="", flush=True)
    return " -> ".join(jobs)


def _cluster_key(run: RunDir, key: str, otherwise: Any) -> Any:
    """Return a key of the section `cluster` of a run, or `otherwise`."""
    with suppress(CheckpointError, KeyError, TypeError):
        return type(otherwise)(read_frozen(run)["cluster"][key])
    return otherwise


def common_script(runs: Sequence[RunEntry]) -> Path:
    """Return the batch script that all runs share. Raises SubmitError without one, or if a run was moved."""
    for run in runs:
        if run.script is None:
            raise SubmitError(local_runs.resume_message(run))
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
