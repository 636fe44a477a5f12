"""Rules that compare the requested resources with a node of the preset."""

import math
from collections.abc import Iterator

from train_anywhere.config.checks.contradictions import batch_size_problem
from train_anywhere.slurm.rules.rule_request import Request
from train_anywhere.slurm.script import units


def gpus_of_a_node(request: Request) -> Iterator[str]:
    """Report more GPUs per node than a node has, or a number that the site does not offer."""
    node, requested = request.job.node, max(request.job.devices)
    if node is None or not request.job.gpus:
        return
    if requested > node.gpus:
        more = f" trainer.nodes={-(-sum(request.job.devices) // node.gpus)}"
        yield (
            f"trainer.devices={requested} GPUs per node, but {_node(request)} has {node.gpus}; use trainer.devices={node.gpus}{more}."
        )
    elif node.counts and not set(request.job.devices) <= set(node.counts):
        choices = " or ".join(map(str, node.counts))
        yield f"trainer.devices={requested}, but {request.cluster} gives {choices} GPUs of a node; use trainer.devices={node.counts[-1]}."


def cpus_of_a_node(request: Request) -> Iterator[str]:
    """Report more CPUs than a node with GPUs has. A job without GPUs may get another kind of node, which presets do not list."""
    job, node = request.job, request.job.node
    requested = max(job.ranks) * job.cpus_per_task
    if job.gpus and node and node.cpus and requested > node.cpus:
        yield (
            f"{max(job.ranks)} ranks x cluster.cpus_per_task={job.cpus_per_task} are {requested} CPUs per node, but {_node(request)} "
            f"gives {node.cpus}; use cluster.cpus_per_task={max(1, node.cpus // max(job.ranks))}."
        )


def memory_of_a_node(request: Request) -> Iterator[str]:
    """Report more memory than a node with GPUs has."""
    job, node = request.job, request.job.node
    if (
        job.gpus
        and job.mem
        and node
        and node.mem
        and request.site.takes_mem
        and job.mem > units.megabytes(node.mem)
    ):
        each = units.megabytes(node.mem) // max(job.devices) // 1024
        yield (
            f"{units.short_size(job.mem)} of memory per node, but {_node(request)} gives {node.mem}; "
            f"use cluster.mem={node.mem} or cluster.mem_per_gpu={each}G."
        )


def one_amount_of_memory(request: Request) -> Iterator[str]:
    """Report memory that is set both per node and per GPU."""
    c = request.config.cluster
    if c.mem is not None and c.mem_per_gpu is not None:
        yield f"cluster.mem={c.mem} and cluster.mem_per_gpu={c.mem_per_gpu} contradict each other; set one of them to null."


def every_node_has_a_rank(request: Request) -> Iterator[str]:
    """Report nodes of an uneven job that would have no rank."""
    if min(request.job.devices) < 1:
        total, nodes = request.config.trainer.total_devices, request.job.nodes
        yield f"trainer.total_devices={total} leaves nodes idle with trainer.nodes={nodes}; use trainer.nodes={total}."


def batch_for_ranks(request: Request) -> Iterator[str]:
    """Report a global batch that can't be divided evenly over the ranks, for any number of nodes that the job may get."""
    job = request.job
    devices = sum(job.devices)
    if job.command:  # its batches are its own
        return
    if not job.elastic:
        if devices and (problem := batch_size_problem(job.batch, devices, "GPUs")):
            yield problem
        return
    counts = [job.devices[0] * nodes for nodes in range(job.fewest, job.nodes + 1)]
    if uneven := [n for n in counts if job.batch % n]:
        common = math.lcm(*counts)
        yield (
            f"the job may get {job.fewest} to {job.nodes} nodes, and data.batch_size={job.batch} is the global batch, which can't be "
            f"shared evenly by {', '.join(map(str, uneven))} GPUs; use data.batch_size={max(1, round(job.batch / common)) * common}."
        )


def _node(request: Request) -> str:
    node, name = request.job.node, request.cluster
    what = node and (node.gpu_type or node.partition)
    return f"a node of {name}" + (f" ({what})" if what else "")


SITE_RULES = (gpus_of_a_node, cpus_of_a_node, memory_of_a_node)
RULES = (
    *SITE_RULES,
    one_amount_of_memory,
    every_node_has_a_rank,
    batch_for_ranks,
)
