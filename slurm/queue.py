"""What became of a job: squeue for the living, sacct for the dead, scontrol where there is no accounting; qstat on PBS.

A scheduler that can't be asked is a `SchedulerError`, never "no such job".
"""

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from src.distributed import programs
from src.errors import SchedulerError, SubmitError

ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT",
}  # fmt: skip
"""States in which a job will never run again, of https://slurm.schedmd.com/squeue.html; in any other it may."""

PBS = {
    "Q": "PENDING",
    "H": "PENDING",
    "W": "PENDING",
    "T": "PENDING",
    "R": "RUNNING",
    "B": "RUNNING",
    "E": "COMPLETING",
    "S": "SUSPENDED",
    "U": "SUSPENDED",
}
"""PBS's letters in Slurm's words; F, C and X are the end, however it was."""

JOB_ID = r"\d+(_\d+|\[\d*\](_\d+)?)?(\.[\w.-]+)?"
"""7, 7_3 (member of an array), PBS' 7.server and 7[]; 7[]_3 is how jobs.txt names the member that PBS calls 7[3]."""

TAKES_LEAVE = 3.0
"""Seconds in which a cancelled job becomes COMPLETING: in Slurm at once, PBS tells its node first."""

STILL_ENDING = 45.0
"""Seconds for a cancelled job to leave: Slurm's KillWait, 30 s by default, and some for its end to be told."""

UNKNOWN = {
    "squeue": "Invalid job id specified",
    "sacct": "accounting storage is disabled",
    "scontrol": "Invalid job id specified|not found",
    "qstat": r"Unknown Job Id|[Hh]as finished",
}
"""Words of a failure that is an answer: the client was asked, and does not know the job. Slurm 22.05, PBS Professional 22, Torque 6."""


@dataclass(frozen=True)
class Known:
    """What the scheduler says of some jobs.

    Attributes:
        states: of those that it knows, in Slurm's words; `12_3` is a member of an array.
        gap: why the end of the others is not known; empty where nobody remembers them.
    """

    states: dict[str, str] = field(default_factory=dict)
    gap: str = ""

    def of(self, job_ids: Sequence[str]) -> dict[str, str]:
        """Those of `job_ids` that are known; of a whole array its members."""
        asked = {*job_ids}
        return {i: s for i, s in self.states.items() if i in asked or i.partition("_")[0] in asked}

    def living(self, job_ids: Sequence[str]) -> dict[str, str]:
        """Those that may still run."""
        return {i: s for i, s in self.of(job_ids).items() if alive(s)}

    def missing(self, job_ids: Sequence[str]) -> list[str]:
        """Those of `job_ids` that are not known."""
        names = {*self.states, *(i.partition("_")[0] for i in self.states)}
        return [i for i in job_ids if i not in names]


def alive(state: str) -> bool:
    """Whether a job in this state may still run."""
    return state not in ENDED


def queued(scheduler: str, job_ids: Sequence[str]) -> Known:
    """What the queue itself says: it knows every job that may still run.

    Raises:
        SchedulerError: it can't be asked.
    """
    if not job_ids:
        return Known()
    if scheduler == "pbs":
        return Known(_states_of_pbs(job_ids))
    command = ["squeue", "--noheader", "--array", "--format=%i|%T", "--states=all", _jobs(job_ids)]
    return Known(_pairs(command))


def states(scheduler: str, job_ids: Sequence[str]) -> Known:
    """What the queue says, and what is remembered of jobs that have left it.

    Raises:
        SchedulerError: the queue can't be asked. What can't be remembered is the answer's `gap`.
    """
    known = queued(scheduler, job_ids)
    if scheduler == "pbs":
        return known
    for remembered in (_by_sacct, _by_scontrol):
        if not (missing := known.missing(job_ids)):
            break
        try:
            known = Known({**_ended(remembered(missing)), **known.states}, known.gap)
        except SchedulerError as error:
            known = Known(known.states, known.gap or str(error))
    return known if known.missing(job_ids) else Known(known.states)


def cancel(scheduler: str, job_ids: Sequence[str], patience: float = 0.0) -> dict[str, str]:
    """Take jobs out of the queue, running or not.

    Args:
        patience: seconds to wait for the end of those that take leave.

    Returns:
        Those that are ending, with their states.

    Raises:
        SubmitError: scancel failed, or they stay.
        SchedulerError: scancel or the queue can't be asked.
    """
    name = {"slurm": "scancel", "pbs": "qdel"}[scheduler]
    answer = programs.run([name, *map(_name_of, job_ids)], programs.QUERY_TIMEOUT_S)
    end = time.monotonic() + max(patience, TAKES_LEAVE)
    while True:
        try:
            living = queued(scheduler, job_ids).living(job_ids)
        except SchedulerError as error:
            raise SchedulerError(f"{name} was called, and what came of it is not known: {error}") from None
        staying = {i: s for i, s in living.items() if s != "COMPLETING"}
        if staying and answer.code:
            raise SubmitError(f"{name} failed with {programs.describe_end(answer)}; {told(staying)}.")
        if not (living if patience else staying) or time.monotonic() > end:
            break
        time.sleep(0.5)
    if staying:
        raise SubmitError(f"{name} was called, but {told(staying)}.")
    return living


def told(living: dict[str, str]) -> str:
    """'job 7 is running, job 8 is pending'."""
    return ", ".join(f"job {i} is {state.lower()}" for i, state in living.items())


def jobs_of(script: str) -> dict[str, str]:
    """The user's jobs in Slurm's queue that were made from a batch script, with their states.

    Raises:
        SchedulerError: the queue can't be asked.
    """
    said = programs.ask(["squeue", "--me", "--noheader", "--array", "--format=%i|%T|%o"], unknown="(?!)")
    rows = [line.split("|", 2) for line in said.splitlines()]
    return {row[0]: row[1] for row in rows if row[2:] == [script]}


def _jobs(job_ids: Iterable[str]) -> str:
    return "--jobs=" + ",".join(_wholes(job_ids))


def _wholes(job_ids: Iterable[str]) -> list[str]:
    """Arrays as a whole: a list of ten thousand members is longer than a command may be."""
    return list(dict.fromkeys(i.partition("_")[0] for i in job_ids))


def _name_of(job_id: str) -> str:
    return re.sub(r"\[\]_(\d+)", r"[\1]", job_id)


def _states_of_pbs(job_ids: Sequence[str]) -> dict[str, str]:
    found = {}
    for job_id in job_ids:
        said = programs.ask(["qstat", "-f", _name_of(job_id)], UNKNOWN["qstat"])
        match = re.search(r"job_state = (\w)", said)
        if said and not match:
            raise SchedulerError(f"qstat answered {said[:80].strip()!a}, which has no job_state in it.")
        if match:
            found[job_id] = PBS.get(match[1], "COMPLETED")
    return found


def _pairs(command: Sequence[str]) -> dict[str, str]:
    """Rows such as 7_1|PENDING.

    Raises:
        SchedulerError: the client can't be asked, or prints something else.
    """
    found = {}
    for row in programs.ask(command, UNKNOWN[command[0]]).splitlines():
        match = re.fullmatch(r"(\d[^|]*)\|([A-Z_]+)\b[^|]*", row.strip())
        if match:
            found[match[1]] = match[2]
        elif row.strip() and not row.startswith("CLUSTER:"):  # the heading with SLURM_CLUSTERS
            raise SchedulerError(
                f"{command[0]} answered {row.strip()[:80]!a}, which is no job and its state."
            )
    return found


def _ended(found: dict[str, str]) -> dict[str, str]:
    """What the accounting says of jobs that the queue does not know: one that it thinks to be running is lost (a runaway job)."""
    return {i: s for i, s in found.items() if not alive(s)}


def _by_sacct(job_ids: Sequence[str]) -> dict[str, str]:
    return _pairs(
        ["sacct", "--noheader", "--parsable2", "--allocations", "--format=JobID,State", _jobs(job_ids)]
    )


def _by_scontrol(job_ids: Sequence[str]) -> dict[str, str]:
    found = {}
    for job_id in _wholes(job_ids):
        for line in programs.ask(
            ["scontrol", "--oneliner", "show", "job", job_id], UNKNOWN["scontrol"]
        ).splitlines():
            told = dict(re.findall(r"\b(ArrayJobId|ArrayTaskId|JobState)=(\w+)", line))
            member = f"{told['ArrayJobId']}_{told.get('ArrayTaskId')}" if "ArrayJobId" in told else job_id
            if "JobState" in told:
                found[member] = told["JobState"]
    return found
