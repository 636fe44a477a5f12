"""The environment of a submission: without the variables of this shell that would change what the job is.

sbatch prefers SBATCH_* to the options of a script, and hands all else to the job, where srun reads SLURM_* and SRUN_*.
https://slurm.schedmd.com/sbatch.html and srun.html, "input environment variables"
"""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from train_anywhere.config.cluster import Cluster
from train_anywhere.runs.attempts import job_name

OF_SLURM = re.compile("(SLURM|SLURMD|SBATCH|SRUN)_")

OF_A_STEP = re.compile(
    "(SRUN|SBATCH)_|SLURM_(STEP|CPU_BIND|MEM_BIND|DISTRIBUTION|NTASKS|NPROCS|CPUS_PER_TASK|TRES_PER|GPUS_PER_TASK|EXPORT|HINT|PROCID|LOCALID)"
)
"""Variables of a step's shell that its own srun and mpirun take for options, or for their place among ranks."""

KEPT = ("SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS", "SBATCH_CLUSTERS", "SLURM_TIME_FORMAT")
"""Variables that say which cluster is asked, or how a time is printed."""

OF_THE_USER = ("account", "partition", "qos", "reservation")
"""Options that many users set once for all their jobs: SBATCH_ACCOUNT holds if `cluster.account` is not set."""


def for_submission(script: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment for sbatch. LC_ALL stays as it is, unlike for queries, because the job inherits it."""
    dropped = left_out(script, environ)
    return {k: v for k, v in environ.items() if k not in dropped}


def left_out(script: str, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the names of the variables that a submission of `script` leaves out."""
    own = {
        f"SBATCH_{o.upper()}": re.findall(rf"^#SBATCH --{o}=(.*)", script, re.MULTILINE) for o in OF_THE_USER
    }

    def stays(name: str, value: str) -> bool:
        return name in KEPT or (name in own and all(set_to.strip('"') == value for set_to in own[name]))

    return sorted(k for k, v in environ.items() if OF_SLURM.match(k) and not stays(k, v))


def notes(script: str, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return what a user should know of the shell that submits `script`."""
    names, job = left_out(script, environ), job_name(environ)
    inside = f"this is typed inside job {job}: the run is a job of its own, not a part of that one."
    listed = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
    dropped = f"not passed to the job: {listed} of this shell; the configuration decides (cluster.extra takes any option of sbatch)."
    return [*([inside] if job else []), *([dropped] if names else [])]


def show_notes(script: Path) -> None:
    """Print the notes of a script, a line each."""
    print(
        "".join(f"note: {note}\n" for note in notes(script.read_text(errors="replace"))), end="", flush=True
    )


def for_allocation(ranks: Sequence[int], environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment for a batch script that runs here. A shell from `srun --pty` is a step, a part of the allocation."""
    step = environ.get("SLURM_STEP_ID", "")
    if not step.isdecimal() or int(step) >= 0xFFFFFFF0:  # the shells of batch jobs and salloc
        return {**environ}
    nodes = {"SLURM_NNODES": f"{len(ranks)}", "SLURM_TASKS_PER_NODE": f"{max(ranks)}(x{len(ranks)})"}
    return {**{k: v for k, v in environ.items() if not OF_A_STEP.match(k)}, **nodes}


def with_options_of_shell(cluster: Cluster, environ: Mapping[str, str] = os.environ) -> Cluster:
    """Write SBATCH_ACCOUNT and the like into the job, so that it has the same options when it is submitted again."""
    if cluster.scheduler != "slurm":
        return cluster
    unset = [o for o in OF_THE_USER if getattr(cluster, o) is None]
    values: dict[str, Any] = {o: environ.get(f"SBATCH_{o.upper()}", "") for o in unset}
    return dataclasses.replace(cluster, **{o: v for o, v in values.items() if v and v.isprintable()})
