"""Checks of a configuration for a run on this machine, `cluster=local`."""

from collections.abc import Callable

from train_anywhere.config.checks.batch_norm import needs_gpus
from train_anywhere.config.checks.writable import unwritable
from train_anywhere.config.paths import absolute, expand, here
from train_anywhere.config.schema import Config
from train_anywhere.errors import DataError


def this_machine(config: Config, gpus: Callable[[], int], ranks: int) -> list[str]:
    """Return what this machine can't do: wait in a queue, run on several nodes, start a container, compute without a GPU.

    Args:
        gpus: counts the GPUs of this machine; called only if a key needs one.
        ranks: of the run.
    """
    return [
        *no_scheduler(config),
        *_nodes(config),
        *_container(config),
        *_local_disk(config.checkpoint.local),
        *_needs_gpus(config, gpus, ranks),
    ]


def no_scheduler(config: Config) -> list[str]:
    """A scheduler named beside `cluster=local`, which submits nothing."""
    if config.cluster.scheduler == "none":
        return []
    kind = config.cluster.scheduler
    return [
        f"cluster={config.cluster.name} is this machine and has no cluster.scheduler={kind}; use cluster={kind} to submit a job."
    ]


def _nodes(config: Config) -> list[str]:
    if config.trainer.most_nodes == 1:
        return []
    key = "total_devices" if isinstance(config.trainer.total_devices, str) else "nodes"
    return [
        f"trainer.{key}={getattr(config.trainer, key)} needs a cluster and cluster={config.cluster.name} is this machine; "
        "name one with cluster=..., or use trainer.nodes=1."
    ]


def _container(config: Config) -> list[str]:
    if config.container.name == "none":
        return []
    return [
        f"container={config.container.name} is for the ranks of a job, and cluster={config.cluster.name} is this machine, where they "
        "run in this Python; leave it out (container=none), or name a cluster."
    ]


FOR_GPUS = {"compression": ("bf16", "fp16"), "process_group_backend": ("nccl", "gloo")}
"""Keys of `strategy` with a value that works between GPUs alone, and what works without."""


def _needs_gpus(config: Config, gpus: Callable[[], int], ranks: int) -> list[str]:
    if config.trainer.accelerator != "cpu" and gpus():
        return []
    problems = [
        f"strategy.{key}={value} needs GPUs, and this run computes on the CPU; use strategy.{key}={instead}."
        for key, (value, instead) in FOR_GPUS.items()
        if getattr(config.strategy, key, None) == value
    ]
    several = config.framework == "lightning" and ranks > 1
    if several and config.trainer.sync_batchnorm:
        problems.append(needs_gpus("this run computes on the CPU"))
    return problems


def _local_disk(location: str | None) -> list[str]:
    """`checkpoint.local`, where it names a folder."""
    if location in (None, "auto"):
        return []
    try:
        problem = unwritable(absolute(here(expand(location))))
    except (OSError, ValueError, DataError) as error:
        problem = str(error)
    return (
        [f"checkpoint.local={location}: {problem}; use checkpoint.local=auto or another folder."]
        if problem
        else []
    )
