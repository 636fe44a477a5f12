"""Rules that yield notes, which do not stop a submission."""

from collections.abc import Iterator
from pathlib import Path

from train_anywhere.config.checks.targets import unreadable_target_notes
from train_anywhere.slurm.rules.rule_request import Request
from train_anywhere.slurm.script import units


def node_is_special(request: Request) -> Iterator[str]:
    """Report what the preset notes about this kind of node, if the job has several nodes or the processor is not x86."""
    node = request.job.node
    if node and node.about and (request.job.nodes > 1 or "aarch64" in node.about):
        yield node.about


def unlisted_node_type(request: Request) -> Iterator[str]:
    """Report a GPU type or partition that the preset does not list, such as a slice of a GPU."""
    for key in ("partition", "gpu_type"):
        value = getattr(request.config.cluster, key)
        known = dict.fromkeys(name for n in request.site.nodes if (name := getattr(n, key)))
        if known and value and value not in known:
            yield (
                f"cluster.{key}={value} is not in the preset of {request.cluster}, which lists {', '.join(known)}: "
                "GPUs, CPUs and memory of such a node are not checked, and the scheduler decides."
            )


def memory_for_gpus(request: Request) -> Iterator[str]:
    """Report less memory than the rule of thumb: twice the memory of the GPUs."""
    job, node = request.job, request.job.node
    if job.gpus and job.mem and node and node.gpu_mem:
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
        and not Path(str(data.arguments.get("dir", ""))).is_dir()
    ):
        yield f"jobs on {request.cluster} have no internet: fetch {data.name} on the login node first."


def unchecked_targets(request: Request) -> Iterator[str]:
    """Report targets whose arguments can't be checked before the job runs, because their source can't be read."""
    yield from unreadable_target_notes(request.config)


RULES = (unlisted_node_type, node_is_special, memory_for_gpus, cpus_for_gpus, downloads, unchecked_targets)
