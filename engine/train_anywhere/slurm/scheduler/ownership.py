"""Check that jobs belong to a run folder. A shared folder's jobs.txt may name any job, and `jobs.py cancel` cancels those jobs."""

import os
import re
from collections.abc import Sequence

from train_anywhere.distributed import programs
from train_anywhere.errors import SubmitError
from train_anywhere.runs.reopen.trust import is_remembered
from train_anywhere.slurm.scheduler import queue
from train_anywhere.slurm.status.find_runs import RunEntry


def refuse_other_jobs(
    run: RunEntry, job_ids: Sequence[str], consequence: str = "nothing was cancelled", command: str = ""
) -> None:
    """Refuse jobs that were not submitted from the run folder, unless this user has recorded them as jobs of the run.

    The message says with `consequence` what was not done, and with `command` how to do it, by default with the scheduler's cancel command.

    Raises:
        SubmitError: jobs.txt names such a job.
        SchedulerError: the scheduler does not answer.
    """
    scripts = _slurm_scripts(job_ids) if run.scheduler == "slurm" else _pbs_outputs(job_ids)
    above, base = os.path.realpath(run.folder.path.parent), (run.script or run.folder.config).parent.name
    own = {os.path.realpath(run.folder.path), os.path.join(above, base)}  # a sweep's members share a script
    for job_id, script in scripts.items():
        if os.path.realpath(os.path.dirname(script)) not in own and not is_remembered(
            run.folder.path, job_id
        ):
            name = {"slurm": "scancel", "pbs": "qdel"}[str(run.scheduler)]
            raise SubmitError(
                f"job {job_id} in {run.folder.jobs} was not submitted from that folder but as {script!r}, so {consequence}; "
                f"if you mean that job, use `{command or name} {queue.native_id(job_id)}`."
            )


def _slurm_scripts(job_ids: Sequence[str]) -> dict[str, str]:
    """Return the batch script of each job."""
    command = ["squeue", "--noheader", "--array", "--format=%i|%T|%o", queue.jobs_option(job_ids)]
    rows = [line.split("|", 2) for line in programs.query(command, queue.UNKNOWN["squeue"]).splitlines()]
    return {row[0]: row[2] for row in rows if row[2:] and row[0] in job_ids}


def _pbs_outputs(job_ids: Sequence[str]) -> dict[str, str]:
    """Return the output file of each job, which is in the folder of its script."""
    found = {}
    for job_id in job_ids:
        answer = programs.query(["qstat", "-f", queue.native_id(job_id)], queue.UNKNOWN["qstat"])
        if output := re.search(
            r"^\s*Output_Path = (?:[^:/]*:)?(/.*)$", answer.replace("\n\t", ""), re.MULTILINE
        ):
            found[job_id] = output[1]
    return found
