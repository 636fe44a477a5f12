"""Map a strategy's name to a Lightning strategy."""

from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy, Strategy
from torch import Tensor, nn
from torch.nn.parallel import data_parallel

from train_anywhere.config.checks.contradictions import needs_gpus_problem
from train_anywhere.config.choices import DdpStrategy
from train_anywhere.config.choices import Strategy as StrategyConfig
from train_anywhere.config.schema import Config, Trainer
from train_anywhere.distributed.layout import no_gpu_message
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import ConfigError
from train_anywhere.training.lightning.strategies.ddp import OneDevicePerRank, TopologyEnvironment
from train_anywhere.training.lightning.strategies.fsdp import FullyShardedStrategy
from train_anywhere.training.lightning.strategies.hooks import StrategyHooks


class OneDevice(StrategyHooks, SingleDeviceStrategy):
    """One device in one process."""


class DataParallel(OneDevice):
    """Runs the network on parts of the batch, one per device. All else uses the whole batch.

    As in torch's DataParallel, each part of a batch has its own batch statistics. Without GPUs the parts are computed one after
    another, so this can be tried on any machine.

    Args:
        devices: the devices; the first one holds the weights.
    """

    strategy_name = "dp"

    def __init__(self, devices: list[torch.device], **options: Any) -> None:
        super().__init__(devices[0], **options)
        self.devices = devices
        self._splits = False

    def setup(self, trainer: pl.Trainer) -> None:
        """Set up for one device. Raises ConfigError for a module with a network of its own."""
        super().setup(trainer)
        if not self._splits:
            raise ConfigError(
                f"strategy=dp splits only the network of a task that takes one, and {type(self.lightning_module).__qualname__} has its "
                "own; use strategy=ddp."
            )

    def split(self, network: nn.Module) -> None:
        """Let a network run on all devices, with parts of its inputs [b, ...]; it keeps its attributes."""
        self._splits = True
        forward: Any = network.forward

        def on_all(*inputs: Any, **named: Any) -> Any:
            network.forward = forward  # also that of the copies on the devices
            try:
                if self.devices[0].type == "cuda":
                    return data_parallel(network, inputs, self.devices, module_kwargs=named)
                parts = _split((inputs, named), len(self.devices))
                return _join([forward(*args, **kwargs) for args, kwargs in parts])
            finally:
                network.forward = on_all

        network.forward = on_all


def _split(tree: Any, count: int) -> list[Any]:
    """Split the tensors [b, ...] in a tree into at most `count` parts."""
    if isinstance(tree, Tensor) and tree.dim():
        return list(tree.chunk(count))
    if isinstance(tree, Mapping):
        parts = [_split(value, count) for value in tree.values()]
        return [dict(zip(tree, part, strict=True)) for part in _group_by_device(parts, count)]
    if isinstance(tree, tuple | list):
        parts = [_split(value, count) for value in tree]
        return [_make_like(tree, part) for part in _group_by_device(parts, count)]
    return [tree]


def _group_by_device(parts: list[list[Any]], count: int) -> list[list[Any]]:
    """Group the parts of several inputs by device. A single part is for all of them."""
    most = max((len(part) for part in parts), default=1)
    return [[part[n if len(part) > 1 else 0] for part in parts] for n in range(min(most, count))]


def _join(outputs: list[Any]) -> Any:
    """Join predictions: the reverse of `_split`."""
    first = outputs[0]
    if isinstance(first, Tensor):
        return torch.cat(outputs) if first.dim() else torch.stack(outputs)
    if isinstance(first, Mapping):
        return type(first)({key: _join([output[key] for output in outputs]) for key in first})  # type: ignore[call-arg]
    if isinstance(first, tuple | list):
        return _make_like(first, [_join(list(values)) for values in zip(*outputs, strict=True)])
    return first


def _make_like(sequence: Any, values: list[Any]) -> Any:
    return type(sequence)(*values) if hasattr(sequence, "_fields") else type(sequence)(values)


def list_devices(first: torch.device, count: int) -> list[torch.device]:
    """Return `count` devices, without GPUs the CPU. Raises ConfigError for too few GPUs."""
    if first.type != "cuda":
        return [first] * count
    if count > torch.cuda.device_count():
        raise ConfigError(
            f"strategy=dp needs {count} GPUs and this process sees {torch.cuda.device_count()}; "
            f"use trainer.devices={torch.cuda.device_count()}."
        )
    return [torch.device("cuda", number) for number in range(count)]


def make_strategy(
    name: str, config: Config, topology: Topology, device: torch.device, devices: int
) -> Strategy:
    """Return the strategy of one rank by its resolved name.

    Raises:
        ConfigError: the strategy does not work with these options.
    """
    trainer, chosen = config.trainer, config.strategy
    options: dict[str, Any] = {"completes": config.checkpoint.other_objects == "leave_out"}
    if name == "single":
        return OneDevice(device, **options)
    if name == "dp":
        return DataParallel(list_devices(device, devices), **options)
    if name == "horovod":
        assert chosen.name == "horovod"
        # imported here, because Horovod is optional
        from train_anywhere.training.lightning.strategies.horovod import HorovodStrategy

        return HorovodStrategy(topology, device, chosen.compression, **options)
    # torch's SyncBatchNorm would fail in the first step, see torch/nn/modules/batchnorm.py
    if trainer.sync_batchnorm and topology.world_size > 1 and device.type == "cpu":
        raise ConfigError(needs_gpus_problem("this rank computes on the CPU"))
    options |= {"cluster_environment": TopologyEnvironment(topology), "parallel_devices": [device]}
    if name == "fsdp":
        assert chosen.name == "fsdp"
        group = ranks_per_node(topology) if chosen.shard_within_node else None
        return FullyShardedStrategy(blocks=chosen.blocks, group=group, **options)
    if trainer.find_unused_parameters is not None:
        options["find_unused_parameters"] = trainer.find_unused_parameters
    options["gradient_as_bucket_view"] = True  # views of the buffers that are sent save a copy
    return OneDevicePerRank(**options, **_ddp_options(chosen, device))


def _ddp_options(chosen: StrategyConfig, device: torch.device) -> dict[str, Any]:
    """Return the options of `strategy` for DDP. Raises ConfigError for bf16 or NCCL on a CPU."""
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


def ranks_per_node(topology: Topology) -> int:
    """Return the number of ranks on each node. Raises ConfigError if it differs."""
    if topology.local_world_size * topology.nodes != topology.world_size:
        raise ConfigError(
            f"strategy.shard_within_node=true needs the same number of ranks on each node, and {topology.nodes} nodes have "
            f"{topology.world_size} ranks; use the same number on each, or strategy.shard_within_node=false."
        )
    return topology.local_world_size


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
