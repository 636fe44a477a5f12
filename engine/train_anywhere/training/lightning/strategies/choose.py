"""Map a strategy's name to a Lightning strategy."""

from typing import Any

import torch
from lightning.pytorch.strategies import SingleDeviceStrategy, Strategy

from train_anywhere.config.checks.contradictions import needs_gpus_problem
from train_anywhere.config.choices import DdpStrategy
from train_anywhere.config.choices import Strategy as StrategyConfig
from train_anywhere.config.schema import Config, Trainer
from train_anywhere.distributed.layout import no_gpu_message
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import ConfigError
from train_anywhere.training.lightning.strategies.ddp import (
    OneDevicePerRank,
    TopologyEnvironment,
    node_devices,
)
from train_anywhere.training.lightning.strategies.fsdp import FullyShardedStrategy
from train_anywhere.training.lightning.strategies.hooks import StrategyHooks


class OneDevice(StrategyHooks, SingleDeviceStrategy):
    """One device in one process."""


def make_strategy(name: str, config: Config, topology: Topology, device: torch.device) -> Strategy:
    """Return the strategy of one rank by its resolved name. Raises ConfigError for options that do not suit it."""
    trainer, chosen = config.trainer, config.strategy
    options: dict[str, Any] = {"completes": config.checkpoint.other_objects == "leave_out"}
    if name == "single":
        return OneDevice(device, **options)
    if name == "horovod":
        assert chosen.name == "horovod"
        # imported here, because Horovod is optional
        from train_anywhere.training.lightning.strategies.horovod import HorovodStrategy

        return HorovodStrategy(topology, device, chosen.compression, **options)
    # torch's SyncBatchNorm would fail in the first step, see torch/nn/modules/batchnorm.py
    if trainer.sync_batchnorm and topology.world_size > 1 and device.type == "cpu":
        raise ConfigError(needs_gpus_problem("this rank computes on the CPU"))
    options |= {
        "cluster_environment": TopologyEnvironment(topology),
        "parallel_devices": node_devices(topology, device),
    }
    if name == "fsdp":
        assert chosen.name == "fsdp"
        group = topology.local_world_size if chosen.shard_within_node else None
        if group and group * topology.nodes != topology.world_size:
            raise ConfigError(
                f"strategy.shard_within_node=true needs the same number of ranks on each node, and {topology.nodes} nodes have "
                f"{topology.world_size} ranks; use the same number on each, or strategy.shard_within_node=false."
            )
        return FullyShardedStrategy(blocks=chosen.blocks, group=group, **options)
    if trainer.find_unused_parameters is not None:
        options["find_unused_parameters"] = trainer.find_unused_parameters
    options["gradient_as_bucket_view"] = True  # views of the buffers that are sent save a copy
    return OneDevicePerRank(**options, **_ddp_options(chosen, device))


def _ddp_options(chosen: StrategyConfig, device: torch.device) -> dict[str, Any]:
    """Return the options of `strategy` for DDP. Raises ConfigError for bf16 or NCCL on a CPU."""
    if not isinstance(chosen, DdpStrategy):
        return {}
    for name, gpu, cpu in (("compression", "bf16", "fp16"), ("process_group_backend", "nccl", "gloo")):
        if getattr(chosen, name) == gpu and device.type != "cuda":
            raise ConfigError(
                f"strategy.{name}={gpu} needs GPUs, and this rank computes on the CPU; use strategy.{name}={cpu}."
            )
    names = ("compression", "static_graph", "process_group_backend", "bucket_cap_mb")
    return {name: value for name in names if (value := getattr(chosen, name)) is not None}


def pick_device(trainer: Trainer, topology: Topology) -> torch.device:
    """Return the device of this rank: its GPU, or the CPU. Raises ConfigError.

    A scheduler may show each rank only its own GPU, or all GPUs of the node. In the second case the local rank is the GPU's number.
    """
    accelerator, gpus = trainer.accelerator, torch.cuda.device_count()
    if accelerator == "cpu" or (accelerator == "auto" and gpus == 0):
        if trainer.precision == "16-mixed":
            raise ConfigError(
                "trainer.precision=16-mixed needs a GPU, and this rank computes on the CPU; "
                "use trainer.precision=bf16-mixed."
            )
        return torch.device("cpu")
    if accelerator == "mps":
        if not torch.backends.mps.is_available():
            raise ConfigError(
                "trainer.accelerator=mps, but torch can't use the GPU of this Mac; use trainer.accelerator=cpu."
            )
        return torch.device("mps")
    if gpus == 0:
        raise ConfigError(no_gpu_message("torch"))
    index = 0 if gpus == 1 else topology.local_rank
    if index >= gpus:
        raise ConfigError(
            f"local rank {index} has no GPU: this node shows {gpus} and has "
            f"{topology.local_world_size} ranks; use trainer.devices={gpus}."
        )
    return torch.device("cuda", index)
