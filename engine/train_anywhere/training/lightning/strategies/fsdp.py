"""Fully sharded data parallelism (FSDP2): each rank keeps a part of the training state.

The weights of a layer are gathered when it is computed and freed afterwards; its gradients are averaged and
scattered. See https://arxiv.org/abs/2304.11277 and `torch.distributed.fsdp.fully_shard`.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
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
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.utils import swap_tensors

from train_anywhere.config.strict import did_you_mean
from train_anywhere.data.torch import random_states
from train_anywhere.errors import ConfigError
from train_anywhere.training.lightning.checkpoint.contents import (
    ShardPlanner,
    ShardReader,
    as_checkpoint_error,
)
from train_anywhere.training.lightning.dropin.trainable import KEY, restore_groups, set_flags
from train_anywhere.training.lightning.private import forget_groups
from train_anywhere.training.lightning.strategies.ddp import OneDevicePerRank

CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
"""Layers that only contain others: a list is never called, and the layers of a chain can be gathered one after another."""


def find_blocks(network: nn.Module, names: Sequence[str] = ()) -> list[nn.Module]:
    """Return the layers of these classes, or all with a matrix. Raises ConfigError for none."""
    found = list(_search_blocks(network, set(names)))
    if names and not found:
        classes = sorted({type(m).__name__ for m in network.modules()})
        raise ConfigError(
            f"strategy.blocks={list(names)}: no layer of the network has such a class{did_you_mean(names[0], classes)}"
        )
    count = lambda module: Counter(id(p) for _, p in module.named_parameters(remove_duplicate=False))  # noqa: E731
    uses = count(network)  # more than those in a block: other layers share its weights
    return [block for block in found if all(uses[p] == own for p, own in count(block).items())]


def _search_blocks(network: nn.Module, names: set[str]) -> Iterator[nn.Module]:
    for child in network.children():
        contains = isinstance(child, CONTAINERS)
        has_matrix = not contains and any(parameter.dim() > 1 for parameter in child.parameters())
        if type(child).__name__ in names if names else has_matrix:
            yield child
        elif names or contains:
            yield from _search_blocks(child, names)


def _has_plain_meta(module: nn.Module) -> bool:
    """Return whether a module has a tensor without memory that is neither a weight nor a buffer."""
    own = {*vars(nn.Module())}
    found = [value for name, value in vars(module).items() if name not in own]
    found += [v for value in found if isinstance(value, dict) for v in value.values()]
    found += [v for value in found if isinstance(value, (list, tuple)) for v in value]
    return any(isinstance(value, torch.Tensor) and value.is_meta for value in found)


class FullyShardedStrategy(OneDevicePerRank):
    """FSDP over ranks that are already running.

    Only the first rank holds a whole model, on its host: block by block all ranks get its weights and split them.

    Lightning's ModelParallelStrategy is not used. It refuses modules without `configure_model`, computes a step without gathering a module
    that is split as a whole, and reads and writes checkpoints past the CheckpointIO, whose `.metadata` could run code.

    Args:
        blocks: class names of layers that are gathered as a unit; none: see `find_blocks`.
        group: number of consecutive ranks that share one copy of the model; None: all ranks.
    """

    strategy_name = "fsdp"
    restore_checkpoint_after_setup = True  # shards are loaded into a split model
    saves_on_all_ranks = True
    lightning_restore_optimizer = False  # `load_checkpoint` restores it
    _layer_sync: Any  # the Trainer sets it

    def __init__(self, *, blocks: Sequence[str] = (), group: int | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.blocks, self.group = blocks, group

    def build(self, make: Callable[[], Any]) -> Any:
        """Return the result of `make`, on all ranks but the first without memory for its weights, if that is possible."""
        if self.global_rank == 0:
            return make()
        states = random_states.get_states()
        # a module that needs a value now raises any error; its own come again below
        with suppress(Exception):
            with torch.device("meta"):
                built = make()
            if isinstance(built, nn.Module) and not any(map(_has_plain_meta, built.modules())):
                return built
        random_states.restore(states)
        return make()

    def setup(self, trainer: pl.Trainer) -> None:
        """Split the model, then create optimizers. Raises ConfigError for more than one."""
        self.accelerator.setup(trainer)
        self.precision_plugin.convert_module(self.model)
        self.model_to_device()
        if trainer.state.fn == TrainerFn.FITTING:
            self.setup_optimizers(trainer)
        self.setup_precision_plugin()
        if len(self.optimizers) > 1:  # a sharded checkpoint holds the state of one
            raise ConfigError(
                f"strategy=fsdp supports one optimizer, and this module has {len(self.optimizers)}; use strategy=ddp."
            )

    def model_to_device(self) -> None:
        """Send rank 0's weights to all ranks, which keep their parts."""
        if self._layer_sync:  # applied once: Lightning would restore the old layers, which are not split
            self._layer_sync.apply(self.model)
            self._layer_sync = None
        if not isinstance(self.network, FSDPModule):
            self._split()
            self._fill(self.model)
            # Lightning calls the steps of a module, not the module, and only a call gathers it
            if self.network is self.model:
                for step in ("training_step", "validation_step", "test_step"):
                    register_fsdp_forward_method(self.model, step)
        super().model_to_device()
        self._broadcast(self.model.buffers())

    def _split(self) -> None:
        """Split each block of the network over the ranks: it is gathered as a unit. Raises ConfigError without a layer of these classes.

        The rest is gathered with the network: small layers such as normalizations, and weights that two blocks share.
        """
        network, ranks, device = self.network, self.world_size, self.root_device.type
        group = self.group or ranks
        if group == ranks:
            mesh = init_device_mesh(device, (ranks,))
        else:  # gradients are averaged over the groups
            mesh = init_device_mesh(device, (ranks // group, group), mesh_dim_names=("replicate", "shard"))
        # torch caches the mesh and so the process group, which must end before Python does
        weakref.finalize(network, forget_groups, mesh)
        for block in [*find_blocks(network, self.blocks), network]:
            self._fill(block)
            fully_shard(block, mesh=mesh)

    def _fill(self, part: nn.Module) -> None:
        """Fill the weights of a part that are not split yet with rank 0's values, and its buffers without memory."""
        for tensor in (t for t in [*part.parameters(), *part.buffers()] if not isinstance(t, DTensor)):
            weight = isinstance(tensor, nn.Parameter)
            if tensor.is_meta:
                filled = torch.empty_like(tensor, device=self.root_device)
                filled = nn.Parameter(filled, tensor.requires_grad) if weight else filled
                vars(filled).update(vars(tensor))
                swap_tensors(tensor, filled)  # a weight that two layers share stays shared
            elif weight:
                tensor.data = tensor.data.to(self.root_device)
            if weight:
                self._broadcast([tensor])

    @property
    def network(self) -> nn.Module:
        """The module that is split: the network of a task, or a whole LightningModule."""
        network = getattr(self.lightning_module, "network", None)
        return network if isinstance(network, nn.Module) else self.lightning_module

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Do not scatter gradients within the block, for all but the last batch of a step."""
        self.network.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self.network.set_requires_gradient_sync(True)

    def on_validation_start(self) -> None:
        """Send rank 0's buffers to all ranks: during training they differ (BatchNorm)."""
        self._broadcast(self.network.buffers())

    def on_validation_end(self) -> None:
        """Split again what the last forward pass has gathered, for hooks on the weights."""
        super().on_validation_end()
        if isinstance(self.network, FSDPModule):
            self.network.reshard()

    def _broadcast(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            distributed.broadcast(tensor.data, 0)

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return this rank's part of the weights. All ranks must call this."""
        self._broadcast(self.network.buffers())
        return get_model_state_dict(self.model)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return this rank's part of the optimizer state. All ranks must call this."""
        plain = optimizer.optimizer if isinstance(optimizer, LightningOptimizer) else optimizer
        return get_optimizer_state_dict(self.model, plain)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Load the shards of any number of ranks, and return the content of the file."""
        state = super().load_checkpoint(checkpoint_path, weights_only)
        with as_checkpoint_error(checkpoint_path):
            shards: dict[str, Any] = {"state_dict": get_model_state_dict(self.model)}
            for optimizer in self.optimizers:  # at most one, with a state only for trainable parameters
                set_flags(self.lightning_module, state.get(KEY, {}))
                restore_groups(self.lightning_module, self.optimizers, state.get(KEY, {}))
                shards["optimizer"] = self.optimizer_state(optimizer)
            dcp.load(shards, storage_reader=ShardReader(Path(checkpoint_path).parent), planner=ShardPlanner())
            set_model_state_dict(self.model, shards["state_dict"])
            for optimizer in self.optimizers:
                set_optimizer_state_dict(self.model, optimizer, shards["optimizer"])
        return state

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Do nothing: `load_checkpoint` has loaded the weights."""
