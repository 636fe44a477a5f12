"""What became of a job: squeue for the living, sacct for the dead, scontrol where there is no accounting; qstat on PBS."""

import re
import subprocess
from collections.abc import Sequence

ALIVE = {
    "PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "STAGE_OUT", "SIGNALING",
    "RESIZING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT",
}  # fmt: skip
"""States in which a job may still run; https://slurm.schedmd.com/squeue.html"""

PBS = {
    "Q": "PENDING",
    "H": "PENDING",
    "W": "PENDING",
    "T": "PENDING",
    "R": "RUNNING",
    "E": "COMPLETING",
    "S": "SUSPENDED",
}
"""PBS's letters in Slurm's words; F, C and X are the end, however it was."""


def alive(state: str) -> bool:
    """Whether a job in this state may still run."""
    return state in ALIVE


def states(scheduler: str, job_ids: Sequence[str]) -> dict[str, str]:
    """The state of each job in Slurm's words (`12_3` is a member of an array); those that nobody knows are left out."""
    if not job_ids:
        return {}
    if scheduler == "pbs":
        return _states_of_pbs(job_ids)
    found = _pairs(["squeue", "--noheader", "--array", "--format=%i|%T", "--states=all", _jobs(job_ids)])
    if missing := [i for i in job_ids if i not in found]:
        found |= _pairs(
            ["sacct", "--noheader", "--parsable2", "--allocations", "--format=JobID,State", _jobs(missing)]
        )
    for job_id in [i for i in job_ids if i not in found]:
        if match := re.search(
            r"\bJobState=(\S+)", _output(["scontrol", "--oneliner", "show", "job", job_id])
        ):
            found[job_id] = match[1]
    return {i: found[i] for i in job_ids if i in found}


def cancel(scheduler: str, job_ids: Sequence[str]) -> None:
    """Take jobs out of the queue, running or not."""
    subprocess.run([{"slurm": "scancel", "pbs": "qdel"}[scheduler], *job_ids], check=False)


def _jobs(job_ids: Sequence[str]) -> str:
    return "--jobs=" + ",".join(job_ids)


def _states_of_pbs(job_ids: Sequence[str]) -> dict[str, str]:
    found = {}
    for job_id in job_ids:
        if match := re.search(r"job_state = (\w)", _output(["qstat", "-f", job_id])):
            found[job_id] = PBS.get(match[1], "COMPLETED")
    return found


def _pairs(command: Sequence[str]) -> dict[str, str]:
    pairs = (row.split("|") for row in _output(command).splitlines() if "|" in row)
    return {i: state.split()[0] for i, state, *_ in pairs if state.strip()}


def _output(command: Sequence[str]) -> str:
    """What a client prints; nothing where it is missing or knows nothing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return done.stdout if done.returncode == 0 else ""
