"""The states of jobs: squeue for live ones, sacct for finished ones, scontrol without accounting; qstat on PBS.

A scheduler that does not answer is a `SchedulerError`, never "no such job".
"""

import os
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from train_anywhere.distributed import programs
from train_anywhere.errors import SchedulerError, SubmitError

ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT",
}  # fmt: skip
"""States of https://slurm.schedmd.com/squeue.html in which a job will never run again; in any other it may."""

PBS = {
    "Q": "PENDING", "H": "PENDING", "W": "PENDING", "T": "PENDING", "R": "RUNNING", "B": "RUNNING", "E": "COMPLETING",
    "S": "SUSPENDED", "U": "SUSPENDED",
}  # fmt: skip
"""PBS's states under Slurm's names; F, C and X mean ended, successfully or not."""

JOB_ID = r"\d+(_\d+|\[\d*\](_\d+)?)?(\.[\w.-]+)?"
"""7, 7_3 (member of an array), PBS' 7.server and 7[]; jobs.txt writes 7[]_3 for the member that PBS calls 7[3]."""

CANCEL_TIMEOUT_S = 3.0
"""Until a cancelled job must be COMPLETING: Slurm does that at once, PBS tells its node first."""

END_TIMEOUT_S = 45.0
"""Until a cancelled job must have left the queue: Slurm's KillWait, 30 s by default, and a margin."""

SACCT = ("sacct", "--noheader", "--parsable2", "--allocations")
"""The accounting's jobs without their steps, a line each."""

UNKNOWN = {
    "squeue": "Invalid job id specified",
    "sacct": "accounting storage is disabled",
    "scontrol": "Invalid job id specified|not found",
    "qstat": r"Unknown Job Id|[Hh]as finished",
}
"""Errors with which a client says that it does not know the job. Slurm 22.05, PBS Professional 22, Torque 6."""


@dataclass(frozen=True)
class JobStates:
    """The states of some jobs, as far as the scheduler knows them.

    Attributes:
        states: by job id, with Slurm's names; `12_3` is a member of an array.
        gap: why the end of the other jobs could not be looked up; empty if nothing failed.
    """

    states: dict[str, str] = field(default_factory=dict)
    gap: str = ""

    def of(self, job_ids: Sequence[str]) -> dict[str, str]:
        """The states of `job_ids`, as far as known; for an array, those of its members."""
        asked = {*job_ids}
        return {i: s for i, s in self.states.items() if i in asked or i.partition("_")[0] in asked}

    def living(self, job_ids: Sequence[str]) -> dict[str, str]:
        """The states of those of `job_ids` that may still run."""
        return {i: s for i, s in self.of(job_ids).items() if alive(s)}

    def missing(self, job_ids: Sequence[str]) -> list[str]:
        """Those of `job_ids` whose state is not known."""
        names = {*self.states, *(i.partition("_")[0] for i in self.states)}
        return [i for i in job_ids if i not in names]


def alive(state: str) -> bool:
    """Whether a job in this state may still run."""
    return state not in ENDED


def queued(scheduler: str, job_ids: Sequence[str]) -> JobStates:
    """States from the queue itself, which knows every job that may still run.

    Raises:
        SchedulerError: the queue does not answer.
    """
    if not job_ids:
        return JobStates()
    if scheduler == "pbs":
        return JobStates(_states_of_pbs(job_ids))
    command = ["squeue", "--noheader", "--array", "--format=%i|%T", "--states=all", jobs(job_ids)]
    return JobStates(_pairs(command))


def states(scheduler: str, job_ids: Sequence[str]) -> JobStates:
    """States from the queue, and from the accounting for jobs that have left it.

    Raises:
        SchedulerError: the queue does not answer. A failure of the accounting is the answer's `gap`.
    """
    known = queued(scheduler, job_ids)
    if scheduler == "pbs":
        return known
    for look_up in (_by_sacct, _states_by_scontrol):
        if not (missing := known.missing(job_ids)):
            break
        try:
            known = JobStates({**_ended(look_up(missing)), **known.states}, known.gap)
        except SchedulerError as error:
            known = JobStates(known.states, known.gap or str(error))
    return known if known.missing(job_ids) else JobStates(known.states)


def cancel(scheduler: str, job_ids: Sequence[str], patience: float = 0.0) -> dict[str, str]:
    """Cancel jobs, pending or running.

    Args:
        patience: seconds to wait for the end of those that are COMPLETING.

    Returns:
        The jobs that are still ending, with their states.

    Raises:
        SubmitError: scancel failed, or the jobs stay in the queue.
        SchedulerError: scancel or the queue does not answer.
    """
    name = {"slurm": "scancel", "pbs": "qdel"}[scheduler]
    answer = programs.run([name, *map(name_of, job_ids)], programs.QUERY_TIMEOUT_S)
    end = time.monotonic() + max(patience, CANCEL_TIMEOUT_S)
    while True:
        try:
            living = queued(scheduler, job_ids).living(job_ids)
        except SchedulerError as error:
            raise SchedulerError(f"{name} was called, and the result is not known: {error}") from None
        staying = {i: s for i, s in living.items() if s != "COMPLETING"}
        if staying and answer.code:
            raise SubmitError(f"{name} failed with {programs.describe_end(answer)}; {describe(staying)}.")
        if not (living if patience else staying) or time.monotonic() > end:
            break
        time.sleep(0.5)
    if staying:
        raise SubmitError(f"{name} was called, but {describe(staying)}.")
    return living


def describe(living: dict[str, str]) -> str:
    """'job 7 is running, job 8 is pending'."""
    return ", ".join(f"job {i} is {state.lower()}" for i, state in living.items())


def jobs_of(script: str) -> dict[str, str]:
    """The user's jobs in Slurm's queue that were submitted with this batch script, with their states.

    Raises:
        SchedulerError: the queue does not answer.
    """
    answer = programs.ask(["squeue", "--me", "--noheader", "--array", "--format=%i|%T|%o"], unknown="(?!)")
    rows = [line.split("|", 2) for line in answer.splitlines()]
    return {
        row[0]: row[1] for row in rows if row[2:] and os.path.realpath(row[2]) == os.path.realpath(script)
    }


def jobs(job_ids: Iterable[str]) -> str:
    """The option of Slurm's clients that names these jobs."""
    return "--jobs=" + ",".join(_wholes(job_ids))


def _wholes(job_ids: Iterable[str]) -> list[str]:
    """Whole arrays instead of members: ten thousand of them are too long for a command line."""
    return list(dict.fromkeys(i.partition("_")[0] for i in job_ids))


def name_of(job_id: str) -> str:
    """What PBS calls a job of jobs.txt."""
    return re.sub(r"\[\]_(\d+)", r"[\1]", job_id)


def _states_of_pbs(job_ids: Sequence[str]) -> dict[str, str]:
    found = {}
    for job_id in job_ids:
        answer = programs.ask(["qstat", "-f", name_of(job_id)], UNKNOWN["qstat"])
        match = re.search(r"job_state = (\w)", answer)
        if answer and not match:
            raise SchedulerError(f"qstat answered {answer[:80].strip()!a}, which has no job_state in it.")
        if match:
            found[job_id] = PBS.get(match[1], "COMPLETED")
    return found


def _pairs(command: Sequence[str]) -> dict[str, str]:
    """Rows such as 7_1|PENDING.

    Raises:
        SchedulerError: the client does not answer, or prints something else.
    """
    found = {}
    for row in programs.ask(command, UNKNOWN[command[0]]).splitlines():
        match = re.fullmatch(r"(\d[^|]*)\|([A-Z_]+)\b[^|]*", row.strip())
        if match:
            found[match[1]] = match[2]
        elif row.strip() and not row.startswith("CLUSTER:"):  # the heading with SLURM_CLUSTERS
            raise SchedulerError(
                f"{command[0]} answered {row.strip()[:80]!a}, which is not a job and its state."
            )
    return found


def _ended(found: dict[str, str]) -> dict[str, str]:
    """The jobs that have ended. One that the accounting takes for running, though the queue does not know it, is lost (a runaway job)."""
    return {i: s for i, s in found.items() if not alive(s)}


def _by_sacct(job_ids: Sequence[str]) -> dict[str, str]:
    return _pairs([*SACCT, "--format=JobID,State", jobs(job_ids)])


def _states_by_scontrol(job_ids: Sequence[str]) -> dict[str, str]:
    return {job: state for job, [state] in by_scontrol(job_ids, "JobState").items()}


def by_scontrol(job_ids: Sequence[str], *names: str) -> dict[str, list[str]]:
    """Return fields of `scontrol show job` for each job, by id; "" for a field that is not there."""
    found = {}
    for job_id in _wholes(job_ids):
        for line in programs.ask(
            ["scontrol", "--oneliner", "show", "job", job_id], UNKNOWN["scontrol"]
        ).splitlines():
            facts = dict(re.findall(r"\b(ArrayJobId|ArrayTaskId|JobState|Reason|ExitCode)=(\S+)", line))
            member = f"{facts['ArrayJobId']}_{facts.get('ArrayTaskId')}" if "ArrayJobId" in facts else job_id
            if "JobState" in facts:
                found[member] = [facts.get(name, "") for name in names]
    return found
