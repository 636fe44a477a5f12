"""Query and poll the states of jobs with squeue, sacct, scontrol and qstat.

A scheduler that does not answer is a `SchedulerError`, never "no such job".
"""

import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from train_anywhere.distributed import programs
from train_anywhere.errors import SchedulerError, SubmitError, listed

ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT",
}  # fmt: skip
"""States in which a job will never run again; in any other it may: https://slurm.schedmd.com/squeue.html."""

PBS_STATES = {
    "Q": "PENDING", "H": "PENDING", "W": "PENDING", "T": "PENDING", "R": "RUNNING", "B": "RUNNING", "E": "COMPLETING",
    "S": "SUSPENDED", "U": "SUSPENDED",
}  # fmt: skip
"""Slurm's names for the states of PBS. F, C and X mean ended, successfully or not."""

JOB_ID = r"\d+(_\d+|\[\d*\](_\d+)?)?(\.[\w.-]+)?"
"""Form of a job id: 7, 7_3 (array member), on PBS 7.server and 7[]. jobs.txt has 7[]_3 for the member that PBS calls 7[3]."""

CANCEL_TIMEOUT_S = 3.0
"""Seconds until a cancelled job must be COMPLETING. Slurm needs no time for that, PBS contacts its node first."""

END_TIMEOUT_S = 45.0
"""Seconds until a cancelled job must have left the queue: Slurm's KillWait, 30 s by default, and a margin."""

NORMAL_END = (
    r"srun: (Job step aborted: |Terminating |Force Terminated |forcing job termination|got SIGCONT|cluster configuration lacks )"
    r"|srun: error: [^ ]+: tasks? [0-9,-]+: (Terminated|Exited with exit code 75)$"
    r"|slurmstepd[^ ]*: error: [*]+ (STEP|JOB) [^ ]+ ON [^ ]+ CANCELLED AT [^ ]+"
    r"( DUE (TO|to) (TIME LIMIT|PREEMPTION|JOB REQUEUE|SIGNAL Terminated))? [*]+"
)
"""Start of a line that Slurm prints without an error: a job was cancelled or requeued, or its time is over. For bash and Python."""

CANCEL = {"slurm": "scancel", "pbs": "qdel"}
"""Commands that cancel jobs."""

SACCT = ("sacct", "--noheader", "--parsable2", "--allocations")
"""Command that prints one line per job of the accounting, without job steps."""

UNKNOWN = {
    "squeue": "Invalid job id specified",
    "sacct": "accounting storage is disabled",
    "scontrol": "Invalid job id specified|not found",
    "qstat": r"Unknown Job Id|[Hh]as finished",
}
"""Error messages of each command for an unknown job, in Slurm 22.05, PBS Professional 22 and Torque 6."""

MAX_SILENCE_S = 3600.0
"""Longest time without an answer before waiting is given up. A restart of the scheduler takes less, its maintenance more."""


@dataclass(frozen=True)
class PendingJob:
    """A waiting job, with the scheduler's reason and expected start as far as it gives them."""

    reason: str = ""
    start: str = ""

    @property
    def is_held(self) -> bool:
        """True if the job waits for a release, such as JobHeldUser."""
        return bool(re.search(r"JobHeld|\bheld\b", self.reason))


@dataclass(frozen=True)
class JobStates:
    """The known states of some jobs.

    Attributes:
        states: Slurm's name of the state, by job id; `12_3` is a member of an array.
        gap: why the state of the other jobs could not be looked up; empty if nothing failed.
        waits: why jobs in the queue wait, by job id, if they do.
    """

    states: dict[str, str] = field(default_factory=dict)
    gap: str = ""
    waits: dict[str, PendingJob] = field(default_factory=dict, compare=False)

    def select(self, job_ids: Sequence[str]) -> dict[str, str]:
        """Return the known states of `job_ids`, those of the members for an array."""
        requested = {*job_ids}
        return {i: s for i, s in self.states.items() if i in requested or i.partition("_")[0] in requested}

    def active(self, job_ids: Sequence[str]) -> dict[str, str]:
        """Return the states of those of `job_ids` that may still run."""
        return {i: s for i, s in self.select(job_ids).items() if s not in ENDED}

    def missing(self, job_ids: Sequence[str]) -> list[str]:
        """Return those of `job_ids` whose state is not known."""
        names = {*self.states, *(i.partition("_")[0] for i in self.states)}
        return [i for i in job_ids if i not in names]


def query_queue(scheduler: str, job_ids: Sequence[str]) -> JobStates:
    """Return the states of jobs that may still run. Raises SchedulerError if the queue does not answer."""
    if not job_ids:
        return JobStates()
    if scheduler == "pbs":
        known = {job_id: facts for job_id in job_ids if (facts := query_pbs_fields(job_id))}
        states = {i: PBS_STATES.get(facts["job_state"], "COMPLETED") for i, facts in known.items()}
        why = ("comment", "estimated.start_time")
        waits = {i: PendingJob(*(facts.get(k, "") for k in why)) for i, facts in known.items()}
        return JobStates(states, waits=waits)
    command = ["squeue", "--noheader", "--array", "--format=%i|%T|%r|%S", "--states=all"]
    return _query_states([*command, jobs_option(job_ids)])


def query_states(scheduler: str, job_ids: Sequence[str]) -> JobStates:
    """Return the states from the queue, and from the accounting for jobs that have left it.

    Raises SchedulerError: the queue does not answer. A failure of the accounting is reported in `gap` instead.
    """
    known = query_queue(scheduler, job_ids)
    if scheduler == "pbs" or not (missing := known.missing(job_ids)):
        return known
    try:
        rows = _query_states([*SACCT, "--format=JobID,State", jobs_option(missing)]).states
    except SchedulerError as error:
        return replace(known, gap=str(error))
    # the queue does not know these jobs: one that the accounting lists as running is lost (a runaway job)
    ended = {i: s for i, s in rows.items() if s in ENDED}
    return replace(known, states={**ended, **known.states})


def cancel(scheduler: str, job_ids: Sequence[str], patience: float = 0.0) -> dict[str, str]:
    """Cancel jobs for good, wait up to `patience` seconds, and return those still COMPLETING.

    Slurm would requeue even a cancelled job for its program, and refuses to change that once the job is cancelled.

    Raises SubmitError: scancel failed, or the jobs stay in the queue. Raises SchedulerError: scancel or the queue does not answer.
    """
    name = CANCEL[scheduler]
    if scheduler == "slurm":
        with suppress(SchedulerError):
            never = ["scontrol", "update", f"JobId={','.join(job_ids)}", "Requeue=0"]
            programs.run(never, programs.QUERY_TIMEOUT_S)
    answer = programs.run([name, *map(native_id, job_ids)], programs.QUERY_TIMEOUT_S)
    end = time.monotonic() + max(patience, CANCEL_TIMEOUT_S)
    while True:
        try:
            living = query_queue(scheduler, job_ids).active(job_ids)
        except SchedulerError as error:
            raise SchedulerError(f"{name} was called, and the result is not known: {error}") from None
        staying = {i: s for i, s in living.items() if s != "COMPLETING"}
        if staying and answer.code:
            raise SubmitError(f"{name} failed with {programs.describe_exit(answer)}; {describe(staying)}.")
        if not (living if patience else staying) or time.monotonic() > end:
            break
        time.sleep(0.5)
    if staying:
        raise SubmitError(f"{name} was called, but {describe(staying)}.")
    return living


def describe(living: dict[str, str]) -> str:
    """Return a message such as 'job 7 is running, job 8 is pending'."""
    return listed(f"job {i} is {state.lower()}" for i, state in living.items())


def find_jobs() -> dict[str, dict[str, str]]:
    """Return the states of the user's jobs by the real path of their script. Raises SchedulerError."""
    found: dict[str, dict[str, str]] = {}
    for job_id, (state, script) in query_scripts("--me", unknown="(?!)").items():
        found.setdefault(os.path.realpath(script), {})[job_id] = state
    return found


def query_scripts(selection: str, unknown: str = UNKNOWN["squeue"]) -> dict[str, tuple[str, str]]:
    """Return states and scripts of the jobs in Slurm's queue that an option of squeue selects, by job id."""
    command = ["squeue", selection, "--noheader", "--array", "--format=%i|%T|%o"]
    rows = [line.split("|", 2) for line in programs.query(command, unknown).splitlines()]
    return {row[0]: (row[1], row[2]) for row in rows if row[2:]}


def jobs_option(job_ids: Iterable[str]) -> str:
    """Return the `--jobs=` option of Slurm's commands for these jobs."""
    # arrays in place of their members: thousands of ids are too long for a command
    return "--jobs=" + ",".join(dict.fromkeys(i.partition("_")[0] for i in job_ids))


def native_id(job_id: str) -> str:
    """Return the scheduler's form of a job id from jobs.txt."""
    return re.sub(r"\[\]_(\d+)", r"[\1]", job_id)


def query_pbs_fields(job_id: str) -> dict[str, str]:
    """Return the fields of `qstat -f`, none for an unknown job. Raises SchedulerError: qstat does not answer, or prints something else."""
    answer = programs.query(["qstat", "-f", native_id(job_id)], UNKNOWN["qstat"])
    # PBS continues a long line behind a tab; Debian's qstat has its fields there
    whole = re.sub(r"\n\t(?![\w.]+ = )", "", answer)
    facts = dict(re.findall(r"^[ \t]*([\w.]+) = (.*)$", whole, re.M))
    if answer and "job_state" not in facts:
        raise SchedulerError(f"qstat answered {answer[:80].strip()!a}, which has no job_state in it.")
    return facts


def _query_states(command: Sequence[str]) -> JobStates:
    """Return the states that a command prints in rows such as 7_1|PENDING|Priority|N/A. Raises SchedulerError."""
    found = JobStates()
    for row in map(str.strip, programs.query(command, UNKNOWN[command[0]]).splitlines()):
        if match := re.fullmatch(r"(\d[^|]*)\|([A-Z_]+)\b[^|]*(?:\|([^|]*)\|([^|]*))?", row):
            found.states[match[1]] = match[2]
            why = ("" if word in (None, "N/A", "None", "(null)") else word for word in match.groups()[2:])
            found.waits[match[1]] = PendingJob(*why)
        elif row and not row.startswith("CLUSTER:"):  # a heading that Slurm prints if SLURM_CLUSTERS is set
            raise SchedulerError(f"{command[0]} answered {row[:80]!a}, which is not a job and its state.")
    return found


def query_job_fields(job_ids: Sequence[str], *names: str) -> dict[str, list[str]]:
    """Return fields of `scontrol show job` for each job, by id. "" for a missing field."""
    found = {}
    form = r"\b(ArrayJobId|ArrayTaskId|JobState|Reason|ExitCode|BatchFlag)=(\S+)"
    for job_id in dict.fromkeys(i.partition("_")[0] for i in job_ids):
        command = ["scontrol", "--oneliner", "show", "job", job_id]
        for line in programs.query(command, UNKNOWN["scontrol"]).splitlines():
            facts = dict(re.findall(form, line))
            member = f"{facts['ArrayJobId']}_{facts.get('ArrayTaskId')}" if "ArrayJobId" in facts else job_id
            if "JobState" in facts:
                found[member] = [facts.get(name, "") for name in names]
    return found


def poll_active(scheduler: str, job_ids: Sequence[str]) -> Iterator[bool]:
    """Yield whether a job may still run, by a new look into the queue each time. A scheduler that does not answer is asked again.

    Raises SchedulerError after `MAX_SILENCE_S` without an answer.
    """
    silent_since: float | None = None
    while True:
        try:
            active = bool(query_queue(scheduler, job_ids).active(job_ids))
            if silent_since is not None:
                print("The scheduler answers again.", file=sys.stderr, flush=True)
            silent_since = None
        except SchedulerError as error:
            active = True
            if silent_since is None:
                silent_since = time.monotonic()
                print(f"{error} The job continues; asking again ...", file=sys.stderr, flush=True)
            if time.monotonic() - silent_since > MAX_SILENCE_S:
                raise SchedulerError(
                    f"{error} No answer for {MAX_SILENCE_S / 60:g} minutes: the job may still run, but this command stops waiting for it."
                ) from None
        yield active
