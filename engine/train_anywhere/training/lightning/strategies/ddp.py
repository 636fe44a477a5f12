"""torch's DistributedDataParallel (DDP): each rank has the whole model, and gradients are averaged during backward."""

import gc
from typing import Any, cast

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.seed import reset_seed
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from torch import Tensor, distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.constants import default_pg_timeout
from torch.nn.parallel import DistributedDataParallel

from train_anywhere.training.lightning.dropin.trained import late
from train_anywhere.training.lightning.loop.private import _init_dist_connection
from train_anywhere.training.lightning.strategies.environment import TopologyEnvironment
from train_anywhere.training.lightning.strategies.rendezvous import open_store

COMPRESSED = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}
"""What sends gradients, by the name of the compression."""

AFTER_SAVE = "Trainer.save_checkpoint"
"""Lightning's name of the barrier after a checkpoint. Ours are written in the background: it would only be a wait."""


class OneDevicePerRank(DDPStrategy):
    """DistributedDataParallel over ranks that exist already and know one device each.

    Lightning's own computes ranks as node * devices + local rank, which is wrong for uneven jobs, indexes its
    devices by the local rank, and has a launcher that starts processes.

    Args:
        compression: "none", or "fp16" or "bf16" to send gradients with 16 bits; in fp16 those above 65504 become infinite.
    """

    def __init__(self, *, compression: str = "none", **options: Any) -> None:
        super().__init__(**options)
        self.compression = compression
        self.averaged: set[nn.Parameter] = set()  # parameters whose gradients DDP averages
        self._frozen: dict[nn.Parameter, str] = {}

    def configure_ddp(self) -> None:
        """Lightning registers hooks for gradients on GPUs alone."""
        assert self.lightning_module
        named = list(self.lightning_module.named_parameters())
        self.averaged = {p for _, p in named if p.requires_grad}
        self._frozen = {p: name for name, p in named if not p.requires_grad}
        super().configure_ddp()
        if self.compression != "none":
            assert isinstance(self.model, DistributedDataParallel)
            self.model.register_comm_hook(None, COMPRESSED[self.compression])

    def expect(self, module: pl.LightningModule) -> None:
        """Of a module that steps by hand, a backward may be of a part of the weights: one network of two."""
        if not module.automatic_optimization:
            self._ddp_kwargs.setdefault("find_unused_parameters", True)

    def follow_trained(self) -> None:
        """Wrap the module again if other parameters are trained than those whose gradients are averaged; all ranks call it together.

        With unused parameters allowed, those that are frozen now stay: a step by hand may freeze one network for the other.
        """
        module, strategy = self.lightning_module, cast(Any, self)
        if not isinstance(strategy.model, DistributedDataParallel) or module is None:
            return
        trained = {p for p in module.parameters() if p.requires_grad}
        kept = (
            self.averaged.intersection(module.parameters())
            if strategy.model.find_unused_parameters
            else set()
        )
        if (trained | kept) == self.averaged:
            return
        for parameter in module.parameters():
            parameter.grad = None  # it lies in the memory of the old wrapper
        strategy.model = module
        self._pl_static_graph_delay_done = False
        gc.collect()  # the old wrapper takes its hooks off the parameters
        for parameter in (frozen := kept - trained):
            parameter.requires_grad_(True)
        self.configure_ddp()
        for parameter in frozen:
            parameter.requires_grad_(False)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Raise ConfigError for a parameter that is trained since the middle of an epoch: each rank would use its own gradient."""
        if (
            self._frozen
            and self.world_size > 1
            and (names := [name for p, name in self._frozen.items() if p.requires_grad])
        ):
            raise late(names, self.lightning_module, batch_idx)

    @property
    def root_device(self) -> torch.device:
        """The device of this rank."""
        assert self.parallel_devices
        return self.parallel_devices[0]

    def determine_ddp_device_ids(self) -> None:
        """None: batches are on the device already. With any, Lightning makes DDP in a stream of its own, and each backward pass waits
        for it."""

    def set_world_ranks(self) -> None:
        """The environment knows them; only Lightning's `rank_zero_only` must be set."""
        rank_zero_only.rank = self.global_rank

    def setup_distributed(self) -> None:
        """As Lightning's, but the ranks meet in our own store. The Trainer calls it again at the start of each loop."""
        environment = self.cluster_environment
        assert isinstance(environment, TopologyEnvironment)
        reset_seed()
        self.set_world_ranks()
        self._process_group_backend = self._get_process_group_backend()
        if distributed.is_initialized():
            return
        store = open_store(environment.topology, self._timeout or default_pg_timeout)
        _init_dist_connection(
            environment,
            self._process_group_backend,
            timeout=self._timeout,
            device_id=self.root_device if self.root_device.type != "cpu" else None,
            store=store,
        )

    def barrier(self, name: str | None = None) -> None:
        """Wait until all ranks are here; but not after a checkpoint."""
        if name != AFTER_SAVE:
            super().barrier(name)

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """As Lightning's, which lets all ranks wait for each other first: a sum, as of each row of metrics, is a wait by itself."""
        if reduce_op != "sum" or not isinstance(tensor, Tensor) or not distributed.is_initialized():
            return super().reduce(tensor, group, reduce_op)
        distributed.all_reduce(tensor, group=group)
        return tensor

    def _configure_launcher(self) -> None:
        pass
