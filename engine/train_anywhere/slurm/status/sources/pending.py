"""Query why a job waits, and when the scheduler expects to start it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from train_anywhere.distributed import programs
from train_anywhere.errors import SchedulerError
from train_anywhere.slurm.scheduler import queue

WAITING = ("pending", "requeue_hold", "special_exit")
"""States of a waiting job; in the last two it waits until it is released."""


@dataclass(frozen=True)
class PendingJob:
    """A waiting job.

    Attributes:
        reason: the scheduler's reason; empty if it gives none.
        start: the expected start in the scheduler's format; empty if not known.
    """

    reason: str = ""
    start: str = ""

    @property
    def is_held(self) -> bool:
        """True if the job waits for a release: Slurm's JobHeldUser, JobHeldAdmin, `job requeued in held state`."""
        return bool(re.search(r"JobHeld|\bheld\b", self.reason))


def query_pending(scheduler: str, job_ids: Sequence[str]) -> dict[str, PendingJob]:
    """Return the waiting ones of these jobs, by id; nothing if the scheduler does not answer."""
    try:
        return {"slurm": _query_squeue, "pbs": _query_qstat}[scheduler](job_ids) if job_ids else {}
    except SchedulerError:
        return {}  # the query of the states reports it


def _query_squeue(job_ids: Sequence[str]) -> dict[str, PendingJob]:
    options = ["--noheader", "--array", "--format=%i|%r|%S", "--states=all"]
    command = ["squeue", *options, queue.jobs_option(job_ids)]
    rows = [row.strip().split("|") for row in programs.query(command, queue.UNKNOWN["squeue"]).splitlines()]
    return {row[0]: PendingJob(_clean(row[1]), _clean(row[2])) for row in rows if len(row) == 3}


def _clean(word: str) -> str:
    return "" if word in ("N/A", "None", "(null)") else word


def _query_qstat(job_ids: Sequence[str]) -> dict[str, PendingJob]:
    found = {}
    for job_id in job_ids:
        answer = programs.query(["qstat", "-f", queue.native_id(job_id)], queue.UNKNOWN["qstat"])
        facts = dict(re.findall(r"^    ([\w.]+) = (.*)$", answer.replace("\n\t", ""), re.M))
        if queue.PBS_STATES.get(facts.get("job_state", "")) == "PENDING":
            found[job_id] = PendingJob(facts.get("comment", ""), facts.get("estimated.start_time", ""))
    return found
