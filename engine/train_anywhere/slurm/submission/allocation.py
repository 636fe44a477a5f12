"""Detect whether this command runs inside an allocation, and what that offers."""

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from train_anywhere.config.schema import Config
from train_anywhere.distributed.topology import expand_hosts
from train_anywhere.errors import SchedulerError, SubmitError, listed
from train_anywhere.runs import lock
from train_anywhere.runs.attempts import JOB_VARIABLES, STARTED, running_job
from train_anywhere.slurm.scheduler import queue
from train_anywhere.slurm.script.job import Job, devices_per_node


@dataclass(frozen=True)
class Allocation:
    """An interactive allocation (salloc, qsub -I).

    Attributes:
        nodes, cpus, gpus: numbers of nodes, of CPUs on the smallest node, of GPUs on each; 0 if unknown.
        hosts: its nodes, as Slurm writes them; "" if unknown.
        refusal: why a job must not be started here: this process belongs to a batch job, or is one of several tasks.
    """

    job_id: str
    nodes: int = 0
    cpus: int = 0
    gpus: int = 0
    hosts: str = ""
    refusal: str = ""


def current_allocation(environ: Mapping[str, str] = os.environ) -> Allocation | None:
    """Return the allocation in which a job would run now. None if it must be submitted.

    A notebook or an editor that runs as a batch job may submit if the scheduler answers there.

    Raises SubmitError: the job of this shell has ended, or it is a batch job that can't submit.
    """
    batch, job = None, environ.get("SLURM_JOB_ID", "")
    with suppress(SchedulerError):
        shown = queue.query_job_fields([job], "BatchFlag") if re.fullmatch(r"\d+", job) else {}
        batch = next((flag == "1" for [flag] in shown.values() if flag), None)
    if not (here := find_allocation(environ, batch)):
        return None
    variable = next(v for v in JOB_VARIABLES if environ.get(v))
    runs = _is_running(variable, environ[variable])
    if runs is False:
        raise SubmitError(
            f"{here.refusal and f'{here.refusal} Or '}{variable}={environ[variable]}: that job has ended, and this shell still has its "
            f"variables; type `unset {variable}` to submit a job, or make a new allocation and type the command there."
        )
    # each job of this project has at least one of these
    of_project = any(name in environ for name in ("TRAIN_JOB", "TRAIN_HOSTS", STARTED))
    several = of_project or sum(_numbers(environ, "SLURM_STEP_NUM_TASKS")) > 1
    if here.refusal and (several or not runs):
        raise SubmitError(here.refusal)
    if runs is None:
        print(
            f"note: the scheduler does not answer, so whether job {environ[variable]} of this shell still exists is not known."
        )
    return None if here.refusal else here


def _is_running(variable: str, job: str) -> bool | None:
    """Return whether the scheduler lists the job as running. None without an answer."""
    try:
        pbs = variable != "SLURM_JOB_ID"
        states = queue.query_queue("pbs", [job]).states.values() if pbs else lock.read_job_states(job)
    except SchedulerError:
        return None
    return None if states is None else not {*states} <= {*queue.ENDED, "COMPLETING", "PENDING", "REQUEUED"}


def find_allocation(environ: Mapping[str, str], batch: bool | None = None) -> Allocation | None:
    """Return the allocation of this process. None on a login node.

    `batch` is whether the scheduler lists the job as a batch job; None: the variables of the shell decide. Raises SubmitError: a variable
    does not have the scheduler's format.
    """
    job_id = running_job(environ)
    if not job_id:
        return None
    if not re.fullmatch(queue.JOB_ID, job_id):
        name = next(v for v in JOB_VARIABLES if environ.get(v))
        raise SubmitError(
            f"{name}={job_id!a} is not a job id: this shell is not in an allocation; unset {name}, or log in again."
        )
    several = "TRAIN_HOSTS" in environ or sum(_numbers(environ, "SLURM_STEP_NUM_TASKS")) > 1
    if batch is None:
        # only if the scheduler does not answer: a profile may set ENVIRONMENT too
        batch = environ.get("ENVIRONMENT") == "BATCH" or environ.get("PBS_ENVIRONMENT") == "PBS_BATCH"
    if several or batch:
        refusal = (
            f"this is inside job {job_id}, and a job can't submit another: run the command on the login node, "
            "or inside salloc; a rank is `python src/train.py --run RUNDIR`."
        )
        return Allocation(job_id, refusal=refusal)
    cpus = _numbers(environ, "SLURM_JOB_CPUS_PER_NODE", r"([0-9]{1,9})(?:\(x[0-9]+\))?")  # 8(x2),4
    nodes, hosts = sum(_numbers(environ, "SLURM_JOB_NUM_NODES")), environ.get("SLURM_JOB_NODELIST", "")
    names = ("SLURM_GPUS_PER_NODE", "SLURM_GPUS", "SLURM_GPUS_ON_NODE")
    name = next((n for n in names if environ.get(n)), names[0])
    gpus = sum(_numbers(environ, name, r"(?:[^:,]+:)*([0-9]{1,9})"))  # a100:4
    if "SLURM_GPUS" in environ and nodes != 1:  # the sum of several nodes
        gpus = 0
    return Allocation(job_id, nodes, min(cpus), gpus, hosts)


def _numbers(environ: Mapping[str, str], name: str, form: str = "([0-9]{1,9})") -> list[int]:
    """Return the numbers in the comma-separated parts of a variable, [0] without it. Raises SubmitError."""
    parts = [re.fullmatch(form, part) for part in (environ.get(name) or "0").split(",")]
    if not all(parts):
        raise SubmitError(
            f"{name}={environ[name]!a} does not have the scheduler's format: this shell is not in an allocation, or "
            f"something has changed the variable; unset {name}, or make a new allocation."
        )
    return [int(part[1]) for part in parts if part]


def is_only_node(job: Job, here: Allocation | None, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether this process, maybe a shell of salloc, runs on its only node."""
    one = here is not None and here.nodes < 2 and job.nodes == 1
    return one and bool({"SLURMD_NODENAME", "PBS_NODEFILE"} & {*environ})


def missing_variables(environ: Mapping[str, str]) -> list[str]:
    """Return a message if a variable is missing that the batch script reads in an allocation."""
    job = next(v for v in JOB_VARIABLES if environ.get(v))
    needed = ("SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES") if job == "SLURM_JOB_ID" else ("PBS_NODEFILE",)
    if not (missing := [name for name in needed if not environ.get(name)]):
        return []
    why = f"is set but {' and '.join(missing)} not, so this shell knows only a part of its allocation"
    where = "type the command in the shell of the allocation (salloc, qsub -I)"
    if environ.get("SLURM_HET_SIZE"):
        why = "is a heterogeneous job (salloc ... : ...), which this command can't use as one allocation"
        where = "make an allocation without `:`"
    return [f"{job}={environ[job]} {why}; `unset {job}` to submit a job, or {where}."]


def find_mismatches(job: Job, here: Allocation) -> Iterator[str]:
    """Yield a message for each request of the job that does not match the allocation."""
    if job.members is not None:
        yield "a sweep is a job array, which can't run inside an allocation; run its members one by one, or submit from the login node."
        return
    chosen = expand_hosts(job.cluster.nodelist or "") if job.cluster.nodelist and here.hosts else []
    if missing := [host for host in chosen if host not in expand_hosts(here.hosts)]:
        yield f"cluster.nodelist names {listed(missing)}, and this allocation ({here.job_id}) has {here.hosts}; name nodes of it."
    elif here.nodes and here.nodes != job.nodes and not chosen_nodes(job, here):
        requested = f"{job.fewest}-{job.nodes}" if job.elastic else job.nodes
        yield (
            f"trainer.nodes={requested}, but this allocation ({here.job_id}) has {here.nodes}; use trainer.nodes={here.nodes}, "
            f"or name the nodes of a smaller job, such as cluster.nodelist={expand_hosts(here.hosts)[0] if here.hosts else 'NODE'}."
        )
    if here.cpus and here.cpus < max(job.ranks) * job.cpus_per_task:
        yield (
            f"{max(job.ranks)} ranks per node with {job.cpus_per_task} CPUs each do not fit this allocation ({here.job_id}), "
            f"which has {here.cpus} CPUs on a node; use salloc --cpus-per-task or fewer trainer.devices."
        )


def chosen_nodes(job: Job, here: Allocation | None) -> list[str]:
    """Return the nodes of a job that uses only some of the allocation. Empty otherwise."""
    hosts = expand_hosts(job.cluster.nodelist) if job.cluster.nodelist and here and not job.elastic else []
    return hosts if here and len(hosts) == job.nodes < here.nodes else []


def fill_from_allocation(config: Config, here: Allocation | None) -> Config:
    """Resolve `auto` in an allocation: its GPUs, CPUs and number of nodes."""
    if here is None:
        return config
    c, t = config.cluster, config.trainer
    if here.gpus and t.devices == "auto" and config.strategy.name != "single":
        t = dataclasses.replace(t, devices=here.gpus)
    least, most = t.node_range
    if least < most and least <= here.nodes <= most:
        t = dataclasses.replace(t, nodes=here.nodes, total_devices=None)
    config = dataclasses.replace(config, trainer=t)
    if not here.cpus or c.cpus_per_task is not None:
        return config
    each = max(1, here.cpus // max((1, *devices_per_node(config))))
    return dataclasses.replace(config, cluster=dataclasses.replace(c, cpus_per_task=each))
