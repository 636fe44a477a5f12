"""What became of a job: squeue for the living, sacct for the dead, scontrol where there is no accounting."""

import re
import subprocess
from collections.abc import Sequence

ALIVE = {
    "PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "STAGE_OUT", "SIGNALING",
    "RESIZING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT",
}  # fmt: skip
"""States in which a job may still run; https://slurm.schedmd.com/squeue.html"""


def alive(state: str) -> bool:
    """Whether a job in this state may still run."""
    return state in ALIVE


def states(job_ids: Sequence[str]) -> dict[str, str]:
    """The state of each job in Slurm's words (`12_3` is a member of an array); those that nobody knows are left out."""
    found = _states(
        _rows(
            [
                "squeue",
                "--noheader",
                "--array",
                "--format=%i|%T",
                "--states=all",
                "--jobs=" + ",".join(job_ids),
            ]
        )
    )
    if missing := [i for i in job_ids if i not in found]:
        found |= _states(
            _rows(
                [
                    "sacct",
                    "--noheader",
                    "--parsable2",
                    "--allocations",
                    "--format=JobID,State",
                    "--jobs=" + ",".join(missing),
                ]
            )
        )
    for job_id in [i for i in job_ids if i not in found]:
        shown = "\n".join(_rows(["scontrol", "--oneliner", "show", "job", job_id]))
        if match := re.search(r"\bJobState=(\S+)", shown):
            found[job_id] = match[1]
    return {i: s for i, s in found.items() if any(i == j or i.startswith(f"{j}_") for j in job_ids)}


def _states(rows: Sequence[str]) -> dict[str, str]:
    pairs = (row.split("|") for row in rows if "|" in row)
    return {i: state.split()[0] for i, state, *_ in pairs if state.strip()}


def _rows(command: Sequence[str]) -> list[str]:
    """Lines of output; none where the client is missing or knows nothing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []
