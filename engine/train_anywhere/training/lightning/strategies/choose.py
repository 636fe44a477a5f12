"""From a strategy's name to Lightning's strategy object."""

from typing import Any

import torch
from lightning.pytorch.strategies import SingleDeviceStrategy, Strategy

from train_anywhere.config.checks.batch_norm import needs_gpus
from train_anywhere.config.choices import DdpStrategy
from train_anywhere.config.choices import Strategy as ConfiguredStrategy
from train_anywhere.config.schema import Config
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import ConfigError
from train_anywhere.training.lightning.strategies.ddp import OneDevicePerRank
from train_anywhere.training.lightning.strategies.dp import DataParallel, devices_of
from train_anywhere.training.lightning.strategies.environment import TopologyEnvironment
from train_anywhere.training.lightning.strategies.fsdp import FullyShardedStrategy


def make_strategy(
    name: str, config: Config, topology: Topology, device: torch.device, devices: int
) -> Strategy:
    """The strategy of one rank.

    Args:
        name: the resolved name, one of `MAKERS`.
        device: the rank's only device, or its first one.
        devices: that share the global batch.
    """
    return MAKERS[name](config, topology, device, devices)


def _single(config: Config, topology: Topology, device: torch.device, devices: int) -> Strategy:
    return SingleDeviceStrategy(device)


def _dp(config: Config, topology: Topology, device: torch.device, devices: int) -> Strategy:
    return DataParallel(devices_of(device, devices))


def _refuse_sync_batchnorm(config: Config, topology: Topology, device: torch.device) -> None:
    """Raise ConfigError where torch's SyncBatchNorm would end the first step: see torch/nn/modules/batchnorm.py."""
    if config.trainer.sync_batchnorm and topology.world_size > 1 and device.type == "cpu":
        raise ConfigError(needs_gpus("this rank computes on the CPU"))


def _ddp(config: Config, topology: Topology, device: torch.device, devices: int) -> Strategy:
    _refuse_sync_batchnorm(config, topology, device)
    unused = config.trainer.find_unused_parameters
    found: dict[str, Any] = {} if unused is None else {"find_unused_parameters": unused}
    return OneDevicePerRank(
        parallel_devices=[device],
        cluster_environment=TopologyEnvironment(topology),
        gradient_as_bucket_view=True,  # gradients live in the buffers that are sent: one copy less
        **found,
        **_ddp_options(config.strategy, device),
    )


def _ddp_options(chosen: ConfiguredStrategy, device: torch.device) -> dict[str, Any]:
    """Those of the configuration; `auto` has none, and torch's own defaults count.

    Raises:
        ConfigError: torch sends bf16, and with NCCL, between GPUs only.
    """
    if not isinstance(chosen, DdpStrategy):
        return {}
    if chosen.compression == "bf16" and device.type != "cuda":
        raise ConfigError(
            "strategy.compression=bf16 needs GPUs, and this rank computes on the CPU; use strategy.compression=fp16."
        )
    if chosen.process_group_backend == "nccl" and device.type != "cuda":
        raise ConfigError(
            "strategy.process_group_backend=nccl needs GPUs, and this rank computes on the CPU; use "
            "strategy.process_group_backend=gloo."
        )
    options = {
        "compression": chosen.compression,
        "static_graph": chosen.static_graph,
        "process_group_backend": chosen.process_group_backend,
    }
    return options if chosen.bucket_cap_mb is None else {**options, "bucket_cap_mb": chosen.bucket_cap_mb}


def _fsdp(config: Config, topology: Topology, device: torch.device, devices: int) -> Strategy:
    assert config.strategy.name == "fsdp"
    _refuse_sync_batchnorm(config, topology, device)
    environment = TopologyEnvironment(topology)
    within = config.strategy.shard_within_node
    return FullyShardedStrategy(
        blocks=config.strategy.blocks,
        group=ranks_of_each_node(topology) if within else None,
        parallel_devices=[device],
        cluster_environment=environment,
    )


def ranks_of_each_node(topology: Topology) -> int:
    """The number that all nodes have.

    Raises:
        ConfigError: they have different ones.
    """
    if topology.local_world_size * topology.nodes != topology.world_size:
        raise ConfigError(
            f"strategy.shard_within_node=true splits the model in the same way on each node, and {topology.nodes} nodes have "
            f"{topology.world_size} ranks; use the same number on each, or strategy.shard_within_node=false."
        )
    return topology.local_world_size


def _horovod(config: Config, topology: Topology, device: torch.device, devices: int) -> Strategy:
    from train_anywhere.training.lightning.strategies.horovod import (
        HorovodStrategy,  # optional: it may not be built
    )

    assert config.strategy.name == "horovod"
    return HorovodStrategy(topology, device, config.strategy.compression)


MAKERS = {"single": _single, "dp": _dp, "ddp": _ddp, "fsdp": _fsdp, "horovod": _horovod}
"""By the names of `train_anywhere.config.checks.strategy_table`."""
