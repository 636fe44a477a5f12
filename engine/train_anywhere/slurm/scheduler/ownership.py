"""Which jobs are those of a run folder. Its jobs.txt may come from anyone, and `jobs.py cancel` ends the jobs that it names."""

import os
import re
from collections.abc import Sequence

from train_anywhere.distributed import programs
from train_anywhere.errors import SubmitError
from train_anywhere.runs.reopen.trust import is_remembered
from train_anywhere.slurm.scheduler import queue
from train_anywhere.slurm.status.find_runs import Submitted


def refuse_others(run: Submitted, job_ids: Sequence[str]) -> None:
    """Refuse jobs that were submitted from elsewhere, unless this user has made them jobs of the run.

    Raises:
        SubmitError: jobs.txt names such a job.
        SchedulerError: the scheduler does not answer.
    """
    scripts = _of_slurm(job_ids) if run.scheduler == "slurm" else _of_pbs(job_ids)
    above, base = os.path.realpath(run.folder.path.parent), (run.script or run.folder.config).parent.name
    own = {os.path.realpath(run.folder.path), os.path.join(above, base)}  # a sweep's members share a script
    for job_id, script in scripts.items():
        if os.path.realpath(os.path.dirname(script)) not in own and not is_remembered(
            run.folder.path, job_id
        ):
            name = {"slurm": "scancel", "pbs": "qdel"}[str(run.scheduler)]
            raise SubmitError(
                f"job {job_id} in {run.folder.jobs} was not submitted from that folder but as {script!r}, so nothing was cancelled; "
                f"if you mean that job, use `{name} {queue.name_of(job_id)}`."
            )


def _of_slurm(job_ids: Sequence[str]) -> dict[str, str]:
    """The batch script of each job."""
    command = ["squeue", "--noheader", "--array", "--format=%i|%T|%o", queue.jobs(job_ids)]
    rows = [line.split("|", 2) for line in programs.ask(command, queue.UNKNOWN["squeue"]).splitlines()]
    return {row[0]: row[2] for row in rows if row[2:] and row[0] in job_ids}


def _of_pbs(job_ids: Sequence[str]) -> dict[str, str]:
    """The output file of each job; it is in the folder of the script."""
    found = {}
    for job_id in job_ids:
        answer = programs.ask(["qstat", "-f", queue.name_of(job_id)], queue.UNKNOWN["qstat"])
        if output := re.search(
            r"^\s*Output_Path = (?:[^:/]*:)?(/.*)$", answer.replace("\n\t", ""), re.MULTILINE
        ):
            found[job_id] = output[1]
    return found
