"""Checks for a run on this machine, `cluster=local`."""

from collections.abc import Callable

from train_anywhere.config.checks.contradictions import needs_gpus_problem
from train_anywhere.config.checks.writable import write_problem
from train_anywhere.config.choices import Strategy
from train_anywhere.config.cluster import Cluster
from train_anywhere.config.paths import expand, make_absolute, resolve_node_path
from train_anywhere.config.schema import Config, Trainer
from train_anywhere.errors import DataError


def machine_problems(config: Config, gpus: Callable[[], int], ranks: int) -> list[str]:
    """Return one sentence for each thing that this machine can't do: a queue, several nodes, a container, a missing GPU.

    Args:
        config: the typed configuration.
        gpus: counts the GPUs of this machine; not called with trainer.accelerator=cpu.
        ranks: number of ranks of the run.
    """
    several = config.framework == "lightning" and ranks > 1
    on_cpu = config.trainer.accelerator == "cpu" or not gpus()
    sync_batchnorm = several and config.trainer.sync_batchnorm
    return [
        *scheduler_problems(config.cluster),
        *_node_problems(config.trainer, config.cluster.name),
        *_container_problems(config.container.name, config.cluster.name),
        *_local_folder_problems(config.checkpoint.local),
        *(_gpu_key_problems(config.strategy) if on_cpu else []),
        *([needs_gpus_problem("this run computes on the CPU")] if on_cpu and sync_batchnorm else []),
    ]


def scheduler_problems(cluster: Cluster) -> list[str]:
    """Return a sentence if `cluster=local` has a scheduler, since it submits nothing."""
    kind = cluster.scheduler
    if kind == "none":
        return []
    return [
        f"cluster={cluster.name} is this machine and has no cluster.scheduler={kind}; use cluster={kind} to submit a job."
    ]


def _node_problems(trainer: Trainer, cluster: str) -> list[str]:
    if trainer.max_nodes == 1:
        return []
    key = "total_devices" if isinstance(trainer.total_devices, str) else "nodes"
    return [
        f"trainer.{key}={getattr(trainer, key)} needs a cluster and cluster={cluster} is this machine; "
        "name one with cluster=..., or use trainer.nodes=1."
    ]


def _container_problems(container: str, cluster: str) -> list[str]:
    if container == "none":
        return []
    return [
        f"container={container} is for the ranks of a job, and cluster={cluster} is this machine, where they "
        "run in this Python; leave it out (container=none), or name a cluster."
    ]


FOR_GPUS = {"compression": ("bf16", "fp16"), "process_group_backend": ("nccl", "gloo")}
"""Keys of `strategy`, each with a value that works between GPUs only and one that works on CPUs."""


def _gpu_key_problems(strategy: Strategy) -> list[str]:
    return [
        f"strategy.{key}={value} needs GPUs, and this run computes on the CPU; use strategy.{key}={instead}."
        for key, (value, instead) in FOR_GPUS.items()
        if getattr(strategy, key, None) == value
    ]


def _local_folder_problems(location: str | None) -> list[str]:
    """Check the folder that `checkpoint.local` names."""
    if location in (None, "auto"):
        return []
    try:
        problem = write_problem(make_absolute(resolve_node_path(expand(location))))
    except (OSError, ValueError, DataError) as error:
        problem = str(error)
    advice = "use checkpoint.local=auto or another folder."
    return [f"checkpoint.local={location}: {problem}; {advice}"] if problem else []
