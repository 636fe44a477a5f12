"""The words exchanged with the scheduler: sbatch or qsub, called once per job."""

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from src.errors import SubmitError

COMMAND = {"slurm": "sbatch", "pbs": "qsub"}
SCRIPT = {"slurm": "job.sbatch", "pbs": "job.pbs"}


def submit_script(scheduler: str, script: Path, after: str | None = None, members: str | None = None) -> str:
    """Submit a script; returns the job id.

    Args:
        scheduler: slurm or pbs.
        script: the batch script.
        after: id of a job that must have ended before.
        members: only these members of the script's array, such as 1,3.

    Raises:
        SubmitError: one sentence with the scheduler's own words.
    """
    options = ["--parsable"] if scheduler == "slurm" else []
    if after:
        options += (
            [f"--dependency=afterany:{after}"] if scheduler == "slurm" else ["-W", f"depend=afterany:{after}"]
        )
    if members:
        options += [f"--array={members}"] if scheduler == "slurm" else ["-J", members]
    answer = ask([COMMAND[scheduler], *options, str(script)], environ=_environment(script.read_text()))
    match = re.search(r"^\s*(\d+(\[\])?)", answer.splitlines()[-1] if answer else "")
    if not match:
        raise SubmitError(
            f"{COMMAND[scheduler]} answered '{answer}', which has no job id in it; look at the queue before submitting again."
        )
    return match[1]


def test_only(script: str) -> str:
    """Slurm's own verdict on a script, which is not submitted.

    Raises:
        SubmitError: where Slurm would refuse it, in Slurm's words.
    """
    return ask(["sbatch", "--test-only"], text=script, environ=_environment(script))


def ask(command: Sequence[str], text: str | None = None, environ: dict[str, str] | None = None) -> str:
    """Output of a client of the scheduler.

    Raises:
        SubmitError: where it is not on this machine, or fails.
    """
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, env=environ)
    except FileNotFoundError:
        raise SubmitError(
            f"{command[0]} is not on this machine: run this on a login node of the cluster, or see what would be "
            "submitted with dry_run=true."
        ) from None
    said = " ".join((done.stderr or done.stdout).split())
    if done.returncode:
        raise SubmitError(
            f"{command[0]} refused the job: {said}"
            if said
            else f"{command[0]} failed with exit code {done.returncode}."
        )
    return done.stdout.strip() or said


def _environment(script: str) -> dict[str, str]:
    """The environment without SBATCH_* variables that would win over an option of the script."""
    options = set(re.findall(r"^#SBATCH --([a-z-]+)", script, re.MULTILINE))
    return {
        k: v
        for k, v in os.environ.items()
        if k[:7] != "SBATCH_" or k[7:].lower().replace("_", "-") not in options
    }
