"""Why a job waits, and when the scheduler expects to start it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from train_anywhere.distributed import programs
from train_anywhere.errors import SchedulerError
from train_anywhere.slurm.scheduler import queue

WAITING = ("pending", "requeue_hold", "special_exit")
"""States of a job that waits; in the last two until it is released."""


@dataclass(frozen=True)
class Pending:
    """A waiting job.

    Attributes:
        reason: in the scheduler's words; empty if it gives none.
        start: when it is expected to start, as the scheduler writes it; empty if not known.
    """

    reason: str = ""
    start: str = ""

    @property
    def held(self) -> bool:
        """Whether it waits until someone releases it: Slurm's JobHeldUser, JobHeldAdmin, `job requeued in held state`."""
        return bool(re.search(r"JobHeld|\bheld\b", self.reason))


def pending(scheduler: str, job_ids: Sequence[str]) -> dict[str, Pending]:
    """What the scheduler says of those of these jobs that wait; nothing if it does not answer."""
    try:
        return {"slurm": _by_squeue, "pbs": _by_qstat}[scheduler](job_ids) if job_ids else {}
    except SchedulerError:
        return {}  # whoever asks for the states says so


def _by_squeue(job_ids: Sequence[str]) -> dict[str, Pending]:
    command = [
        "squeue",
        "--noheader",
        "--array",
        "--format=%i|%r|%S",
        "--states=all",
        queue.jobs(job_ids),
    ]
    rows = [row.strip().split("|") for row in programs.ask(command, queue.UNKNOWN["squeue"]).splitlines()]
    return {row[0]: Pending(_said(row[1]), _said(row[2])) for row in rows if len(row) == 3}


def _said(word: str) -> str:
    return "" if word in ("N/A", "None", "(null)") else word


def _by_qstat(job_ids: Sequence[str]) -> dict[str, Pending]:
    found = {}
    for job_id in job_ids:
        answer = programs.ask(["qstat", "-f", queue.name_of(job_id)], queue.UNKNOWN["qstat"])
        facts = dict(re.findall(r"^    ([\w.]+) = (.*)$", answer.replace("\n\t", ""), re.M))
        if queue.PBS.get(facts.get("job_state", "")) == "PENDING":
            found[job_id] = Pending(facts.get("comment", ""), facts.get("estimated.start_time", ""))
    return found
