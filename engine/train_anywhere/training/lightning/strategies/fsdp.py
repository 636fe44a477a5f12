"""Fully sharded data parallelism (FSDP2): each rank keeps a part of the weights, gradients and optimizer state.

The weights of a layer are gathered when it is computed and freed afterwards; its gradients are averaged and
scattered. See https://arxiv.org/abs/2304.11277 and `torch.distributed.fsdp.fully_shard`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.plugins.layer_sync import LayerSync
from lightning.pytorch.trainer.states import TrainerFn
from torch import distributed, nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from train_anywhere.errors import ConfigError
from train_anywhere.training.lightning.checkpoint.shard_reader import ShardPlanner, ShardReader
from train_anywhere.training.lightning.dropin.trainable import KEY, restore_groups, set_flags
from train_anywhere.training.lightning.loop.private import _optimizers_to_device
from train_anywhere.training.lightning.strategies.blocks import shard
from train_anywhere.training.lightning.strategies.ddp import OneDevicePerRank
from train_anywhere.training.lightning.strategies.deferred_weights import DeferredWeights, build_deferred


class FullyShardedStrategy(OneDevicePerRank):
    """FSDP over ranks that are already running.

    No rank ever holds a whole model that `build` returned: block by block it gets rank 0's weights and is split.

    Args:
        blocks: class names of layers that are gathered as a unit; none: see `find_blocks`.
        group: number of consecutive ranks that share one copy of the model; None: all ranks.
        options: arguments of `OneDevicePerRank`.
    """

    strategy_name = "fsdp"
    restore_checkpoint_after_setup = True  # shards are loaded into a split model
    lightning_restore_optimizer = False  # `load_checkpoint` restores it

    def __init__(self, *, blocks: Sequence[str] = (), group: int | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.blocks, self.group = blocks, group
        self._layer_sync: LayerSync | None = None  # the Trainer sets it
        self.deferred: DeferredWeights | None = None  # the weights of a module that is not split yet

    def build(self, make: Callable[[], Any]) -> Any:
        """Return the result of `make`; if it is a module, without memory for its weights if possible."""
        built, self.deferred = build_deferred(make)
        return built

    def setup(self, trainer: pl.Trainer) -> None:
        """Send rank 0's weights to all ranks, each of which keeps its part, then create the optimizers."""
        assert self.accelerator and self.model
        self.accelerator.setup(trainer)
        if self._layer_sync:  # applied once: Lightning would restore the old layers, which are not split
            self._layer_sync.apply(self.model)
            self._layer_sync = None
        self.precision_plugin.convert_module(self.model)
        if not isinstance(self.network, FSDPModule):
            shard(self.network, self.root_device, self.blocks, self.group, self._fill)
            self._fill(self.model)
            self.deferred = None
        self.model_to_device()
        self._broadcast(self.network.buffers())
        fitting = trainer.state.fn == TrainerFn.FITTING
        if fitting:
            self.setup_optimizers(trainer)
            self._refuse_several_optimizers()
        self.setup_precision_plugin()
        if fitting:
            _optimizers_to_device(self.optimizers, self.root_device)

    def _fill(self, part: nn.Module) -> None:
        """Fill the weights of a part that are not split yet with rank 0's values, on this rank's device."""
        filled: dict[int, nn.Parameter] = {}  # a weight that two layers share stays shared
        for module in part.modules():
            for name, weight in module._parameters.items():
                if weight is not None and not isinstance(weight, DTensor):
                    if id(weight) not in filled:
                        filled[id(weight)] = self._fill_weight(weight)
                    module._parameters[name] = filled[id(weight)]

    def _fill_weight(self, weight: nn.Parameter) -> nn.Parameter:
        if weight.is_meta:
            assert self.deferred
            drawn = self.deferred.value(weight).to(self.root_device) if self.global_rank == 0 else None
            value = torch.empty_like(weight, device=self.root_device) if drawn is None else drawn
            filled = nn.Parameter(value, weight.requires_grad)
            vars(filled).update(vars(weight))
        else:
            filled = weight
            filled.data = filled.data.to(self.root_device)
        self._broadcast(iter([filled]))
        return filled

    @property
    def network(self) -> nn.Module:
        """The module that is split: the network of a task, or a whole LightningModule."""
        assert self.lightning_module
        network = getattr(self.lightning_module, "network", None)
        return network if isinstance(network, nn.Module) else self.lightning_module

    def _refuse_several_optimizers(self) -> None:
        """Raise ConfigError for several optimizers: a sharded checkpoint holds the state of one."""
        if len(self.optimizers) > 1:
            raise ConfigError(
                f"strategy=fsdp supports one optimizer, and this module has {len(self.optimizers)}; use strategy=ddp."
            )

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run a training step within the module's forward call, which gathers a module that is split as a whole."""
        return self._step("training_step", *args, **kwargs)

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run a validation step, see `training_step`."""
        return self._step("validation_step", *args, **kwargs)

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run a test step, see `training_step`."""
        return self._step("test_step", *args, **kwargs)

    def _step(self, name: str, *args: Any, **kwargs: Any) -> Any:
        module = self.lightning_module
        assert module and self.precision_plugin
        context = "train" if name == "training_step" else "val" if name == "validation_step" else "test"
        with getattr(self.precision_plugin, f"{context}_step_context")():
            if self.network is module:
                return self._forward_redirection(module, module, name, *args, **kwargs)
            return getattr(module, name)(*args, **kwargs)

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Do not scatter gradients within the block, which Lightning enters for all but the last batch of an accumulation."""
        assert isinstance(self.network, FSDPModule)
        self.network.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self.network.set_requires_gradient_sync(True)

    def on_validation_start(self) -> None:
        """Send rank 0's buffers to all ranks: during training they differ, such as the statistics of BatchNorm."""
        self._broadcast(self.network.buffers())

    def on_validation_end(self) -> None:
        """Split again what the last forward pass has gathered, so that hooks set `requires_grad` of the split weights."""
        if isinstance(self.network, FSDPModule):
            self.network.reshard()

    def _broadcast(self, tensors: Iterator[torch.Tensor]) -> None:
        for tensor in tensors:
            distributed.broadcast(tensor.data, 0)

    # --- checkpoints ----------------------------------------------------------------------------------------

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return this rank's part of the weights. All ranks must call this."""
        self._broadcast(self.network.buffers())
        assert self.model
        return get_model_state_dict(self.model)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return this rank's part of the optimizer state. All ranks must call this."""
        plain = optimizer.optimizer if isinstance(optimizer, LightningOptimizer) else optimizer
        assert self.model
        return get_optimizer_state_dict(self.model, plain)

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Pass each rank's state to `checkpoint_io`; Lightning would do so only on rank 0."""
        self.checkpoint_io.save_checkpoint(checkpoint, filepath, storage_options)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Load the shards next to the file, written by any number of ranks; return the content of the file."""
        state = super().load_checkpoint(checkpoint_path, weights_only)
        assert self.model and self.lightning_module
        if self.optimizers:  # the optimizer has a state only for trainable parameters
            set_flags(self.lightning_module, state.get(KEY, {}))
            restore_groups(self.lightning_module, self.optimizers, state.get(KEY, {}))
        shards: dict[str, Any] = {"state_dict": get_model_state_dict(self.model)}
        if self.optimizers:
            shards["optimizer"] = self.optimizer_state(self.optimizers[0])
        dcp.load(shards, storage_reader=ShardReader(Path(checkpoint_path).parent), planner=ShardPlanner())
        set_model_state_dict(self.model, shards["state_dict"])
        if self.optimizers:
            set_optimizer_state_dict(self.model, self.optimizers[0], shards["optimizer"])
        return state

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Do nothing: `load_checkpoint` has loaded the weights."""
