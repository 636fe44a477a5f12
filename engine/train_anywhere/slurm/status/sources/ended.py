"""Why a job ended, by what Slurm says of it: for runs whose log does not tell."""

import dataclasses
import re
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from train_anywhere.distributed import programs
from train_anywhere.errors import SchedulerError
from train_anywhere.slurm.scheduler import queue
from train_anywhere.slurm.scheduler.queue import JobStates
from train_anywhere.slurm.status.find_runs import Submitted

MOST_ASKED = 20
"""Jobs about which Slurm is asked one by one."""

NOT_BAD = {"", "COMPLETED", "CANCELLED"}
"""States that explain themselves."""

BY_ITSELF = {"", "None", "NonZeroExitCode"}
"""Reasons that say no more than the exit code."""

EXPLAINED = (
    (r"0:53$", "Slurm could not open the log in the run folder: it must be on a disk with room that all nodes have at the same path"),
    (r"^TIMEOUT|TimeLimit", "it reached its time limit: resubmit it to continue, or raise cluster.time"),
    (r"^OUT_OF_MEMORY|OutOfMemory", "it used more memory than it had requested: raise cluster.mem, or lower data.workers"),
    (r"^NODE_FAIL|NodeFail|^BOOT_FAIL", "one of its nodes failed: resubmit it"),
    (r"BadConstraints", "the nodes can no longer give what it requests: compare with `sinfo -o '%P %G %c %m %f'`"),
    (r"^DEADLINE", "it could not end before its deadline"),
    (r"^PREEMPTED", "a job of higher priority took its nodes: resubmit it"),
    (r"[Pp]rolog", "the site's prolog failed on a node: resubmit it, and report the job to the site"),
    (r" 0:0$", "a node could not start it: resubmit it, and report the job to the site if that repeats"),
)  # fmt: skip
"""Patterns of `STATE REASON EXITCODE`, and what to do; the first that matches counts."""


@dataclass(frozen=True)
class Ended:
    """How a job ended, in Slurm's words.

    Attributes:
        state, reason: such as FAILED and JobLaunchFailure; the reason is empty if Slurm gives none.
        exit_code: exit code and signal of the batch script, such as 0:53.
    """

    state: str
    reason: str = ""
    exit_code: str = ""


def ends(job_ids: Sequence[str]) -> dict[str, Ended]:
    """Return how jobs of Slurm ended, from Slurm itself, else from the accounting if there is one.

    Raises:
        SchedulerError: Slurm does not answer.
    """
    facts = queue.by_scontrol(job_ids, "JobState", "Reason", "ExitCode")
    found = {job: Ended(*values) for job, values in facts.items()}
    if missing := JobStates(dict.fromkeys(found, "")).missing(job_ids):
        command = [*queue.SACCT, "--format=JobID,State,Reason,ExitCode", queue.jobs(missing)]
        with suppress(SchedulerError):
            rows = re.findall(r"(?m)^(\d[^|]*)\|(\w+)[^|]*\|([^|]*)\|(\d+:\d+)$", programs.ask(command, ""))
            found |= {job: Ended(*values) for job, *values in rows}
    return found


def newest(found: Sequence[Submitted], known: JobStates) -> dict[str, Ended]:
    """Return how the newest jobs of runs ended, for those that ended badly; nothing if Slurm does not answer."""
    jobs = [run.job_ids[-1] for run in found if run.scheduler == "slurm" and run.job_ids]
    bad = [job for job in jobs if not {*known.of([job]).values()} <= NOT_BAD and not known.living([job])]
    asked = list(dict.fromkeys(job.partition("_")[0] for job in bad))[:MOST_ASKED]
    with suppress(SchedulerError):  # where jobs stand is known without it
        return ends(asked) if asked else {}
    return {}


def why(run: Submitted, ended: Ended | None) -> str:
    """Return Slurm's words for the end of a run's newest job, and what to do; empty if its log tells more."""
    if ended is None or ended.state in NOT_BAD or queue.alive(ended.state):
        return ""
    if (
        ended.state == "FAILED"
        and ended.reason in BY_ITSELF
        and ended.exit_code[-2:] == ":0"
        and _has_printed(run)
    ):
        return ""
    facts = {"State": ended.state, "Reason": ended.reason, "ExitCode": ended.exit_code}
    listed = ", ".join(f"{name}={value}" for name, value in facts.items() if value not in ("", "None"))
    return f"Slurm says {listed} of job {run.job_ids[-1]}: {_explained(*facts.values())}."


def ask(run: Submitted) -> str:
    """Return `why` of one run; empty if Slurm no longer knows its newest job, or does not answer."""
    with suppress(SchedulerError):
        if run.scheduler == "slurm" and run.job_ids:
            return why(run, ends(run.job_ids[-1:]).get(run.job_ids[-1]))
    return ""


def _has_printed(run: Submitted) -> bool:
    """Return whether the newest job of a run has something in its log."""
    with suppress(OSError):
        logs = dataclasses.replace(run, job_ids=run.job_ids[-1:]).logs()
        return any(path.stat().st_size for path in logs)
    return False


def _explained(state: str, reason: str, exit_code: str) -> str:
    text = f"{state} {reason} {exit_code}"
    if found := next((words for pattern, words in EXPLAINED if re.search(pattern, text)), ""):
        return found
    code, killed = (int(number or 0) for number in (exit_code or "0:0").split(":"))
    if number := killed or max(0, code - 128):
        named = f" ({signal.Signals(number).name})" if number in [*signal.Signals] else ""
        return f"{'the batch script' if killed else 'a program of the batch script'} was killed by signal {number}{named}"
    return f"the batch script ended with exit code {code} before it printed anything"
