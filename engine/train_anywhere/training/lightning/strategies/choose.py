"""Map a strategy's name to a Lightning strategy."""

from typing import Any

import torch
from lightning.pytorch.strategies import SingleDeviceStrategy, Strategy

from train_anywhere.config.checks.contradictions import needs_gpus_problem
from train_anywhere.config.choices import DdpStrategy
from train_anywhere.config.choices import Strategy as StrategyConfig
from train_anywhere.config.schema import Config
from train_anywhere.config.schema import Trainer as TrainerConfig
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import ConfigError
from train_anywhere.training.lightning.strategies.ddp import OneDevicePerRank
from train_anywhere.training.lightning.strategies.dp import DataParallel, list_devices
from train_anywhere.training.lightning.strategies.environment import TopologyEnvironment
from train_anywhere.training.lightning.strategies.fsdp import FullyShardedStrategy


def make_strategy(
    name: str, config: Config, topology: Topology, device: torch.device, devices: int
) -> Strategy:
    """Return the strategy of one rank by its resolved name (not `auto`), see `train_anywhere.config.checks.strategy_table`.

    The first device of the rank is `device`; `devices` share the global batch.
    Raises ConfigError if the strategy does not work with them.
    """
    match name:
        case "single":
            return SingleDeviceStrategy(device)
        case "dp":
            return DataParallel(list_devices(device, devices))
        case "ddp":
            return _make_ddp(config.trainer, config.strategy, topology, device)
        case "fsdp":
            return _make_fsdp(config.trainer, config.strategy, topology, device)
    assert config.strategy.name == name == "horovod"
    # imported here, because Horovod is optional
    from train_anywhere.training.lightning.strategies.horovod import HorovodStrategy

    return HorovodStrategy(topology, device, config.strategy.compression)


def _refuse_sync_batchnorm(trainer: TrainerConfig, topology: Topology, device: torch.device) -> None:
    """Raise ConfigError if torch's SyncBatchNorm would fail in the first step, see torch/nn/modules/batchnorm.py."""
    if trainer.sync_batchnorm and topology.world_size > 1 and device.type == "cpu":
        raise ConfigError(needs_gpus_problem("this rank computes on the CPU"))


def _make_ddp(
    trainer: TrainerConfig, strategy: StrategyConfig, topology: Topology, device: torch.device
) -> Strategy:
    _refuse_sync_batchnorm(trainer, topology, device)
    unused = trainer.find_unused_parameters
    options: dict[str, Any] = {} if unused is None else {"find_unused_parameters": unused}
    return OneDevicePerRank(
        parallel_devices=[device],
        cluster_environment=TopologyEnvironment(topology),
        gradient_as_bucket_view=True,  # gradients are views of the buffers that are sent, which saves a copy
        **options,
        **_ddp_options(strategy, device),
    )


def _ddp_options(chosen: StrategyConfig, device: torch.device) -> dict[str, Any]:
    """Return the DDP options of the configuration; `auto` has none, so torch's defaults apply.

    Raises:
        ConfigError: bf16 or NCCL on a CPU; torch supports both only between GPUs.
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


def _make_fsdp(
    trainer: TrainerConfig, strategy: StrategyConfig, topology: Topology, device: torch.device
) -> Strategy:
    assert strategy.name == "fsdp"
    _refuse_sync_batchnorm(trainer, topology, device)
    return FullyShardedStrategy(
        blocks=strategy.blocks,
        group=ranks_per_node(topology) if strategy.shard_within_node else None,
        parallel_devices=[device],
        cluster_environment=TopologyEnvironment(topology),
    )


def ranks_per_node(topology: Topology) -> int:
    """Return the number of ranks on each node. Raises ConfigError if the nodes have different numbers of ranks."""
    if topology.local_world_size * topology.nodes != topology.world_size:
        raise ConfigError(
            f"strategy.shard_within_node=true needs the same number of ranks on each node, and {topology.nodes} nodes have "
            f"{topology.world_size} ranks; use the same number on each, or strategy.shard_within_node=false."
        )
    return topology.local_world_size
