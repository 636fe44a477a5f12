"""Explain with Slurm's records why a job ended, or why it waits."""

import re
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from train_anywhere.distributed import programs
from train_anywhere.errors import SchedulerError
from train_anywhere.files.terminal.printable import one_line
from train_anywhere.runs.folder import ATTEMPTS
from train_anywhere.slurm.scheduler import queue
from train_anywhere.slurm.status.find_runs import RunEntry

MOST_ASKED = 20
"""Largest number of jobs about which Slurm is queried one by one."""

NORMAL_STATES = {"", "COMPLETED", "CANCELLED"}
"""States that need no explanation."""


def _read_table(name: str) -> list[tuple[str, str]]:
    """Return the patterns of a data file next to this module, each with what it means."""
    rows = (line.split("  ", 1) for line in Path(__file__).with_name(name).read_text().splitlines())
    return [(pattern, words) for pattern, words in rows]


ADVICE = _read_table("ends.txt")
"""Patterns of `STATE REASON EXITCODE`, and what to do; the first that matches counts."""

SHARED = "it must be on a disk that all nodes share, not below cluster.local_disk"

START_FAILURES = (
    (r"execve\(\): \S+: (No such file or directory|Permission denied)", f"a node can't start this program; {SHARED}"),
    (r"ModuleNotFoundError: No module named '[\w.]+'", "install it in the job's environment, or name another: cluster.venv, cluster.conda"),
    (r"The following module\(s\) are unknown: .+", "compare cluster.modules with `module avail` on the cluster"),
    (r".*Unable to locate a modulefile for .+", "compare cluster.modules with `module avail` on the cluster"),
    (r"^\S*(bash|sh|python\S*): .*(No such file or directory|Permission denied|command not found)$", SHARED),
    (rf"(?!{queue.NORMAL_END})(slurmstepd|srun): error: .+", "Slurm could not start the ranks"),
)  # fmt: skip
"""Patterns of a log whose job started no rank, and what to do; the first that matches counts."""

WAITING = ("pending", "requeue_hold", "special_exit")
"""States of a waiting job; in the last two it waits until it is released."""

REASONS = _read_table("reasons.txt")
"""Patterns of Slurm's reasons, the first that matches counts, each with its meaning."""


@dataclass(frozen=True)
class JobEnd:
    """The end of a job in Slurm's terms, such as FAILED, JobLaunchFailure and 0:53."""

    state: str
    reason: str = ""
    exit_code: str = ""


def query_ends(job_ids: Sequence[str]) -> dict[str, JobEnd]:
    """Return how jobs ended, from slurmctld, else from the accounting. Raises SchedulerError."""
    facts = queue.query_job_fields(job_ids, "JobState", "Reason", "ExitCode")
    found = {job: JobEnd(*values) for job, values in facts.items()}
    if missing := queue.JobStates(dict.fromkeys(found, "")).missing(job_ids):
        command = [*queue.SACCT, "--format=JobID,State,Reason,ExitCode", queue.jobs_option(missing)]
        with suppress(SchedulerError):
            rows = re.findall(r"(?m)^(\d[^|]*)\|(\w+)[^|]*\|([^|]*)\|(\d+:\d+)$", programs.query(command, ""))
            found |= {job: JobEnd(*values) for job, *values in rows}
    return found


def query_newest_ends(found: Sequence[RunEntry], known: queue.JobStates) -> dict[str, JobEnd]:
    """Return how the newest jobs that failed ended. Nothing if Slurm does not answer."""
    jobs = [run.job_ids[-1] for run in found if run.scheduler == "slurm" and run.job_ids]
    ended = [job for job in jobs if not known.active([job])]
    failed = [job for job in ended if not {*known.select([job]).values()} <= NORMAL_STATES]
    job_ids = list(dict.fromkeys(job.partition("_")[0] for job in failed))[:MOST_ASKED]
    with suppress(SchedulerError):  # the states of the jobs are known without it
        return query_ends(job_ids) if job_ids else {}
    return {}


def explain(run: RunEntry, ended: JobEnd | None) -> str:
    """Return Slurm's reason for the end of a run's newest job. Empty if the log shows more."""
    if ended is None or ended.state in NORMAL_STATES or ended.state not in queue.ENDED:
        return ""
    # these reasons add nothing to the exit code
    plain = ended.reason in ("", "None", "NonZeroExitCode") and ended.exit_code[-2:] == ":0"
    if ended.state == "FAILED" and plain:
        with suppress(OSError):
            if any(path.stat().st_size for path in replace(run, job_ids=run.job_ids[-1:]).logs()):
                return ""
    facts = {"State": ended.state, "Reason": ended.reason, "ExitCode": ended.exit_code}
    listed = ", ".join(f"{name}={value}" for name, value in facts.items() if value not in ("", "None"))
    return f"Slurm reports {listed} for job {run.job_ids[-1]}: {_advice(*facts.values())}."


def explain_start_failure(run: RunEntry, info: Mapping[str, Any]) -> str:
    """Return why no rank of a job started, from its log. Empty if one did."""
    if info.get(ATTEMPTS) or not run.job_ids:
        return ""
    for path in run.logs():
        with suppress(OSError), open(path, "rb") as file:
            log = file.read(2**16).decode(errors="replace")
            for pattern, advice in START_FAILURES:
                if found := re.search(pattern, log, re.MULTILINE):
                    return one_line(f"{found[0].strip()}: {advice}.")
    return ""


def explain_newest(run: RunEntry) -> str:
    """Query Slurm and `explain` the end of a run's newest job. Empty if not known."""
    with suppress(SchedulerError):
        if run.scheduler == "slurm" and run.job_ids:
            return explain(run, query_ends(run.job_ids[-1:]).get(run.job_ids[-1]))
    return ""


def _advice(state: str, reason: str, exit_code: str) -> str:
    text = f"{state} {reason} {exit_code}"
    if found := next((words for pattern, words in ADVICE if re.search(pattern, text)), ""):
        return found
    code, killed = (int(number or 0) for number in (exit_code or "0:0").split(":"))
    if number := killed or max(0, code - 128):
        named = f" ({signal.Signals(number).name})" if number in [*signal.Signals] else ""
        return f"{'the batch script' if killed else 'a program of the batch script'} was killed by signal {number}{named}"
    return f"the batch script ended with exit code {code} before it printed anything"


def in_words(reason: str) -> str:
    """Return a reason with its meaning: `Priority: jobs with a higher priority are before it`."""
    code = re.split(r"[,( ]", reason.strip("()"), maxsplit=1)[0]
    words = next((words for pattern, words in REASONS if re.fullmatch(pattern, code)), "")
    return f"{reason.strip('()')}: {words}" if words else reason
