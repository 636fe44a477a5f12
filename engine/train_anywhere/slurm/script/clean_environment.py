"""Make the environment of a submission, and find the user's accounts.

SBATCH_* variables override the options of a script. The job inherits the others, and its srun reads SLURM_* and SRUN_*.
https://slurm.schedmd.com/sbatch.html and srun.html, "input environment variables"
"""

import dataclasses
import getpass
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

from train_anywhere.config.cluster import Cluster
from train_anywhere.distributed import programs
from train_anywhere.errors import SchedulerError, listed
from train_anywhere.runs.attempts import job_name
from train_anywhere.runs.summary import ON

SLURM_VARIABLES = re.compile("(SLURM|SLURMD|SBATCH|SRUN)_")

STEP_VARIABLES = re.compile(
    "(SRUN|SBATCH)_|SLURM_(STEP|CPU_BIND|MEM_BIND|DISTRIBUTION|NTASKS|NPROCS|CPUS_PER_TASK|TRES_PER|GPUS_PER_TASK|EXPORT|HINT|PROCID|LOCALID)"
)
"""Variables of a step's shell that srun and mpirun would read as options, or as the place of a rank."""

CLUSTER_VARIABLES = ("SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS", "SBATCH_CLUSTERS", "SLURM_TIME_FORMAT")
"""Variables that are kept: they name the cluster, or the format of times."""

USER_OPTIONS = ("account", "partition", "qos", "reservation")
"""Options that many users set in the shell for all their jobs: SBATCH_ACCOUNT counts if `cluster.account` is not set."""

TIMEOUT_S = 10.0


def submission_environment(script: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment for sbatch. LC_ALL is unchanged, because the job inherits it."""
    dropped = {*dropped_variables(script, environ), ON}
    return {k: v for k, v in environ.items() if k not in dropped}


def dropped_variables(script: str, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the names of the variables that a submission of `script` does not pass to the job."""
    kept = {*CLUSTER_VARIABLES}
    for option in USER_OPTIONS:
        name, in_script = f"SBATCH_{option.upper()}", re.findall(rf"(?m)^#SBATCH --{option}=(.*)", script)
        if all(value.strip('"') == environ.get(name) for value in in_script):
            kept.add(name)
    return sorted(name for name in environ if SLURM_VARIABLES.match(name) and name not in kept)


def notes(script: str, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return notes about the shell that submits `script`."""
    names, job = dropped_variables(script, environ), job_name(environ)
    inside = f"this command runs inside job {job}: the run will be a separate job, not a part of that one."
    dropped = f"not passed to the job: {listed(names)} of this shell; the configuration decides (cluster.extra takes any option of sbatch)."
    return [*([inside] if job else []), *([dropped] if names else [])]


def allocation_environment(
    ranks: Sequence[int], cpus_per_task: int, chosen: Sequence[str], environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the environment for a batch script that runs in this allocation.

    A shell from `srun --pty` is a job step, whose variables describe only a part of the allocation. A job on `chosen` nodes sees an
    allocation of these; without any, it sees the whole allocation.
    """
    step = environ.get("SLURM_STEP_ID", "")
    of_shell = not step.isdecimal() or int(step) >= 0xFFFFFFF0  # the shells of batch jobs and salloc
    if of_shell and not chosen:
        return {**environ}
    kept = {k: v for k, v in environ.items() if of_shell or not STEP_VARIABLES.match(k)}
    kept |= {"SLURM_NNODES": f"{len(ranks)}", "SLURM_TASKS_PER_NODE": f"{max(ranks)}(x{len(ranks)})"}
    if chosen:
        kept["SLURM_JOB_NODELIST"] = kept["SLURM_NODELIST"] = ",".join(chosen)
        kept["SLURM_JOB_NUM_NODES"] = f"{len(chosen)}"
        kept["SLURM_JOB_CPUS_PER_NODE"] = f"{max(ranks) * cpus_per_task}(x{len(chosen)})"
    return kept


def apply_shell_options(cluster: Cluster, environ: Mapping[str, str] = os.environ) -> Cluster:
    """Copy SBATCH_ACCOUNT and the like into unset options, so that a resubmission has them."""
    if cluster.scheduler != "slurm":
        return cluster
    unset = [o for o in USER_OPTIONS if getattr(cluster, o) is None]
    values: dict[str, Any] = {o: environ.get(f"SBATCH_{o.upper()}", "") for o in unset}
    return dataclasses.replace(cluster, **{o: v for o, v in values.items() if v and v.isprintable()})


def user_name() -> str:
    """Return the user's name, even if $USER is not set, or the id of a user without a name."""
    with suppress(KeyError, OSError):
        return os.environ.get("USER") or getpass.getuser()
    return str(os.getuid())


def fill_account(cluster: Cluster, gpus: bool) -> Cluster:
    """Return the cluster with the user's only account, if its jobs need one and none is set."""
    if cluster.scheduler != "slurm" or cluster.account or cluster.site.account is None:
        return cluster
    found = of_user(cluster, gpus)
    return dataclasses.replace(cluster, account=found[0]) if len(found) == 1 else cluster


def of_user(cluster: Cluster, gpus: bool) -> list[str]:
    """Return the user's accounts of the usual form, else all. Empty without sacctmgr.

    Of x_cpu and x_gpu, only the one counts that fits a job with (or without) GPUs.
    """
    names = _query(user_name(), os.environ.get("PATH", ""))
    form = re.compile(cluster.site.account or ".*", re.IGNORECASE)  # Slurm stores lower case
    usual = [name for name in names if form.fullmatch(name)] or names
    here, other = ("_gpu", "_cpu") if gpus else ("_cpu", "_gpu")
    return [n for n in usual if not (n.endswith(other) and n.removesuffix(other) + here in usual)]


@cache
def _query(user: str, path: str) -> list[str]:
    """Return the accounts that sacctmgr lists for a user. `path` is a key of the cache only."""
    what = ["show", "associations", f"user={user}", "format=account"]
    try:
        answer = programs.run(["sacctmgr", "--noheader", "--parsable2", *what], TIMEOUT_S)
    except SchedulerError:
        return []
    names = {line.strip() for line in answer.out.splitlines() if line.strip()}
    return sorted(names) if answer.code == 0 else []
