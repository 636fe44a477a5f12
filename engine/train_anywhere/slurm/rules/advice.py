"""Rules that yield notes, which do not stop a submission."""

import os
import re
from collections.abc import Iterator

from train_anywhere.config.checks.targets import import_call_notes, unreadable_target_notes
from train_anywhere.slurm.rules.rule_request import Request
from train_anywhere.slurm.rules.shared_folders import maybe_private
from train_anywhere.slurm.script import accounts, units


def node_is_special(request: Request) -> Iterator[str]:
    """Report what the preset notes about this kind of node, if the job has several nodes or the processor is not x86."""
    node = request.job.node
    if node and node.about and (request.job.nodes > 1 or "aarch64" in node.about):
        yield node.about


def unlisted_node_type(request: Request) -> Iterator[str]:
    """Report a GPU type or partition that the preset does not list, such as a slice of a GPU."""
    for key in ("partition", "gpu_type"):
        value = getattr(request.job.cluster, key)
        known = dict.fromkeys(name for n in request.site.nodes if (name := getattr(n, key)))
        if known and value and (unknown := [name for name in value.split(",") if name not in known]):
            default = request.job.mem is None and request.site.takes_mem
            yield (
                f"cluster.{key}={','.join(unknown)} is not in the preset of {request.cluster}, which lists {', '.join(known)}: "
                "GPUs, CPUs and memory of such a node are not checked, and the scheduler decides."
                + (" The job requests no memory; cluster.mem=... does." if default else "")
            )


def cpu_nodes(request: Request) -> Iterator[str]:
    """Report that a job without GPUs is larger than the nodes with GPUs, the only ones that a preset lists."""
    job, node = request.job, request.job.node
    cpus = max(job.ranks) * job.cpus_per_task
    if (
        not job.gpus
        and node
        and (cpus > (node.cpus or cpus) or (job.mem or 0) > units.megabytes(node.mem or f"{job.mem or 0}"))
    ):
        yield (
            f"the job needs {cpus} CPUs{f' and {units.short_size(job.mem)}' if job.mem else ''} on a node, more than the nodes with GPUs "
            f"have that the preset of {request.cluster} lists; whether another node has them is not checked, and the scheduler decides."
        )


def account_form(request: Request) -> Iterator[str]:
    """Report an account that sacctmgr named, or one without the site's usual form."""
    requested, used, usual = request.config.cluster.account, request.job.cluster.account, request.site.account
    if used and usual and requested is None and "SBATCH_ACCOUNT" not in request.environ:
        yield f"cluster.account={used}, your only account (sacctmgr)."
    elif used and usual and not accounts.has_form(used, usual):
        yield (
            f"cluster.account={used} does not have the usual form of an account of {request.cluster}"
            f"{f', {request.site.account_example}' if request.site.account_example else ''}; the scheduler decides."
        )


def set_by_site(request: Request) -> Iterator[str]:
    """Report a request for something that the site sets by itself: memory, partition."""
    c, site = request.config.cluster, request.site
    for key in ("mem", "mem_per_gpu"):
        if getattr(c, key) is not None and not site.takes_mem:
            yield f"{request.cluster} sets the memory of a job by its CPUs or GPUs, and may ignore or reject cluster.{key}."
    if (partition := request.job.cluster.partition) and not site.takes_partition:
        yield f"{request.cluster} picks the partition of a job itself; cluster.partition={partition} is rarely needed."


def limits_of_partitions(request: Request) -> Iterator[str]:
    """Report partitions, of several, in which the job can't start, because their time limit is shorter."""
    job, names = request.job, (request.job.cluster.partition or "").split(",")
    if not job.gpus or job.cluster.qos or not job.time or len(names) == 1:
        return
    limits = {n.partition: n.max_time for n in request.site.nodes if n.partition in names and n.max_time}
    for name, limit in limits.items():
        if units.seconds(limit) < job.time:
            yield (
                f"cluster.time={units.clock(job.time)} is over the limit of {name}, {units.clock(units.seconds(limit))}: "
                "the job starts in another partition."
            )


def gpu_type(request: Request) -> Iterator[str]:
    """Report a GPU type that the constraint contradicts, and a missing one at a site that then gives its oldest GPUs."""
    c, known = request.config.cluster, sorted({n.gpu_type for n in request.site.nodes if n.gpu_type})
    words = re.findall(r"[\w.-]+", request.job.constraint or "")
    if c.gpu_type and c.gpu_type not in words and (others := [n for n in known if n in words]):
        yield (
            f"cluster.constraint={request.job.constraint} requests other GPUs than cluster.gpu_type={c.gpu_type}; "
            f"use cluster.gpu_type={others[0]} or null."
        )
    if request.job.gpus and request.site.needs_gpu_type and not c.gpu_type and not request.job.constraint:
        names = "|".join(known) or "NAME"
        yield f"{request.cluster} gives its oldest GPUs to a job that does not name a type; cluster.gpu_type={names} names one."


def memory_for_gpus(request: Request) -> Iterator[str]:
    """Report a typed amount of memory below the rule of thumb, twice the memory of the GPUs; the default is their share of the node."""
    job, node, c = request.job, request.job.node, request.config.cluster
    if job.gpus and job.mem and node and node.gpu_mem and (c.mem or c.mem_per_gpu):
        advised = 2 * units.megabytes(node.gpu_mem) * max(job.devices)
        if job.mem < advised and job.mem < units.megabytes(node.mem or "0"):
            yield f"{units.short_size(job.mem)} of memory is below the rule of thumb, twice the GPUs' memory ({units.short_size(advised)})."


def cpus_for_gpus(request: Request) -> Iterator[str]:
    """Report fewer CPUs than the rule of thumb: five or six for each GPU."""
    job, node = request.job, request.job.node
    possible = node.cpus // node.gpus if node and node.cpus else 0
    if job.gpus and job.cpus_per_task < min(5, possible):
        yield (
            f"{job.cpus_per_task} CPUs per GPU may starve the input pipeline: the rule of thumb is 5 or 6, "
            f"and the node has {possible} per GPU."
        )


def downloads(request: Request) -> Iterator[str]:
    """Report a data set that must be downloaded, at a site whose jobs have no internet."""
    data = request.config.data
    if (
        not request.site.internet
        and data.arguments.get("download")
        and not os.path.isdir(str(data.arguments.get("dir", "")))
    ):
        yield f"jobs on {request.cluster} have no internet: fetch {data.name} on the login node first."


def unchecked_targets(request: Request) -> Iterator[str]:
    """Report targets whose arguments can't be checked before the job runs, because their source can't be read."""
    yield from unreadable_target_notes(request.config)
    yield from import_call_notes(request.config)


RULES = (
    unlisted_node_type,
    cpu_nodes,
    account_form,
    set_by_site,
    limits_of_partitions,
    gpu_type,
    node_is_special,
    memory_for_gpus,
    cpus_for_gpus,
    downloads,
    maybe_private,
    unchecked_targets,
)
