"""Fully sharded data parallelism (FSDP2): each rank keeps a part of the weights, gradients and optimizer state.

A layer's weights are gathered when it is computed and dropped afterwards; its gradients are averaged and
scattered. See https://arxiv.org/abs/2304.11277 and `torch.distributed.fsdp.fully_shard`.
"""

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.optimizer import _optimizers_to_device
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.trainer.states import TrainerFn
from torch import distributed, nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.optim import Optimizer

from src.training.lightning.shard_reader import ShardPlanner, ShardReader
from src.training.lightning.strategies.ddp import OneDevicePerRank


class FullyShardedStrategy(OneDevicePerRank):
    """FSDP over ranks that exist already. The model is built whole on each rank before it is split."""

    strategy_name = "fsdp"
    restore_checkpoint_after_setup = True  # shards go into a model that is split already
    lightning_restore_optimizer = False  # `load_checkpoint` does it

    def setup(self, trainer: pl.Trainer) -> None:
        """Rank 0's weights to all ranks, then each keeps its part."""
        assert self.accelerator and self.model
        self.accelerator.setup(trainer)
        self.precision_plugin.convert_module(self.model)
        self.model_to_device()
        if not isinstance(self.network, FSDPModule):
            self._broadcast(self.network.parameters())
            self._broadcast(self.network.buffers())
            shard(self.network, self.root_device)
        fitting = trainer.state.fn == TrainerFn.FITTING
        if fitting:
            self.setup_optimizers(trainer)
        self.setup_precision_plugin()
        if fitting:
            _optimizers_to_device(self.optimizers, self.root_device)

    @property
    def network(self) -> nn.Module:
        """What is split."""
        assert self.lightning_module
        network: nn.Module = self.lightning_module.network
        return network

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Entered by Lightning for all but the last batch of an accumulation: gradients are not scattered."""
        assert isinstance(self.network, FSDPModule)
        self.network.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self.network.set_requires_gradient_sync(True)

    def on_validation_start(self) -> None:
        """Buffers, such as BatchNorm's statistics, differ between ranks while training: rank 0's count."""
        self._broadcast(self.network.buffers())

    def _broadcast(self, tensors: Iterator[torch.Tensor]) -> None:
        for tensor in tensors:
            distributed.broadcast(tensor.data, 0)

    # --- checkpoints ----------------------------------------------------------------------------------------

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """This rank's part of the weights; all ranks must call it."""
        self._broadcast(self.network.buffers())
        assert self.model
        return get_model_state_dict(self.model)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """This rank's part of it; all ranks must call it."""
        plain = optimizer.optimizer if isinstance(optimizer, LightningOptimizer) else optimizer
        assert self.model
        return get_optimizer_state_dict(self.model, plain)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Read the shards beside the file, written by any number of ranks; returns what the file holds."""
        state = super().load_checkpoint(checkpoint_path, weights_only)
        assert self.model
        shards: dict[str, Any] = {"state_dict": get_model_state_dict(self.model)}
        if self.optimizers:
            shards["optimizer"] = self.optimizer_state(self.optimizers[0])
        dcp.load(shards, storage_reader=ShardReader(Path(checkpoint_path).parent), planner=ShardPlanner())
        set_model_state_dict(self.model, shards["state_dict"])
        if self.optimizers:
            set_optimizer_state_dict(self.model, self.optimizers[0], shards["optimizer"])
        return state

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """`load_checkpoint` has done it."""


def shard(network: nn.Sequential | nn.Module, device: torch.device) -> None:
    """Split every layer or block of the network over all ranks, each to be gathered by itself.

    Normalisations between them are small; they are gathered together, with the network.
    """
    mesh = init_device_mesh(device.type, (distributed.get_world_size(),))
    # torch's caches keep the mesh for ever, and it the process group, which must end before Python does
    weakref.finalize(network, mesh._pg_registry.clear)
    for block in network.children():
        if any(parameter.dim() > 1 for parameter in block.parameters()):
            fully_shard(block, mesh=mesh)
    fully_shard(network, mesh=mesh)
