"""torch's DistributedDataParallel: whole models, averaging during the backward pass."""

import gc
import os
from typing import Any

import torch
from lightning.pytorch.plugins.environments import ClusterEnvironment
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, distributed, nn
from torch.distributed import HashStore, Store, TCPStore
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.constants import default_pg_timeout
from torch.nn.parallel import DistributedDataParallel

from train_anywhere.distributed.network.addresses import listen, rendezvous_address
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import ConfigError, listed
from train_anywhere.training.lightning.strategies.hooks import StrategyHooks


class TopologyEnvironment(ClusterEnvironment):
    """A cluster environment from a `Topology`.

    Lightning's own environments read the variables of Slurm or torchrun again, with their own conditions (the
    same number of ranks on every node, --ntasks-per-node given), signal handlers and requeue.
    """

    def __init__(self, topology: Topology) -> None:
        super().__init__()
        self.topology = topology

    creates_processes_externally = True
    detect = staticmethod(lambda: False)
    main_address = property(lambda self: self.topology.coordinator_address)
    main_port = property(lambda self: self.topology.coordinator_port)

    world_size, global_rank = lambda self: self.topology.world_size, lambda self: self.topology.rank
    local_rank, node_rank = lambda self: self.topology.local_rank, lambda self: self.topology.node_rank

    def set_world_size(self, number: int) -> None:
        """Ignore Lightning's value, of ranks per node times nodes, which is wrong for uneven jobs."""

    set_global_rank = set_world_size


def node_devices(topology: Topology, own: torch.device) -> list[torch.device]:
    """Return the devices of this node by local rank. That of this rank is `own`."""
    devices = [torch.device(own.type, number) for number in range(topology.local_world_size)]
    return [*devices[: topology.local_rank], own, *devices[topology.local_rank + 1 :]]


def open_store(topology: Topology) -> Store | None:
    """Return this rank's client of the store, or None under torchrun, which has its own.

    By default torch would listen on all interfaces, even for a single rank. Raises TopologyError for a used port.
    """
    if topology.launched_by == "torchrun":
        return None
    if topology.world_size == 1:
        return HashStore()
    address, port, first = rendezvous_address(topology), topology.coordinator_port, topology.rank == 0
    listening = listen(topology, port).detach() if first else None  # torch closes it
    return TCPStore(
        address, port, topology.world_size, first, timeout=default_pg_timeout, master_listen_fd=listening
    )


class OneDevicePerRank(StrategyHooks, DDPStrategy):
    """DistributedDataParallel over ranks that are already running, with one device each.

    Args:
        compression: "none", or "fp16" or "bf16" to send gradients with 16 bits; in fp16 gradients above 65504 become infinite.
        options: arguments of DDPStrategy and DistributedDataParallel.
    """

    def __init__(self, *, compression: str = "none", **options: Any) -> None:
        own = ("find_unused_parameters", "gradient_as_bucket_view", "static_graph", "bucket_cap_mb")
        self.ddp_options = {name: options.pop(name) for name in own if name in options}
        super().__init__(**options)
        self.compression = compression
        self.averaged: set[nn.Parameter] = set()  # parameters whose gradients DDP averages

    def configure_ddp(self) -> None:
        """Wrap the module, and register the hook for compression also on a CPU."""
        named = list(self.lightning_module.named_parameters())
        self.averaged = {p for _, p in named if p.requires_grad}
        self.frozen = {p: name for name, p in named if not p.requires_grad and self.world_size > 1}
        if not self.lightning_module.automatic_optimization:  # it may train one of two networks
            self.ddp_options.setdefault("find_unused_parameters", True)
        self.model = DistributedDataParallel(self.lightning_module, **self.ddp_options)
        if self.compression != "none":
            self.model.register_comm_hook(None, getattr(default_hooks, f"{self.compression}_compress_hook"))

    def update_trainable(self) -> None:
        """Wrap the module again if other parameters are trainable. All ranks must call this.

        If unused parameters are allowed, parameters that are frozen now stay wrapped: manual optimization may freeze one of two
        networks for a while.
        """
        module = self.lightning_module
        if not isinstance(self.model, DistributedDataParallel) or module is None:
            return
        trained, kept = {p for p in module.parameters() if p.requires_grad}, set[nn.Parameter]()
        if self.model.find_unused_parameters:
            kept = self.averaged.intersection(module.parameters())
        if (trained | kept) == self.averaged:
            return
        for parameter in module.parameters():
            parameter.grad = None  # its memory belongs to the old wrapper
        self.model = module
        self._pl_static_graph_delay_done = False
        gc.collect()  # the old wrapper removes its hooks from the parameters
        for parameter in (frozen := kept - trained):
            parameter.requires_grad_(True)
        self.configure_ddp()
        for parameter in frozen:
            parameter.requires_grad_(False)

    def setup_distributed(self) -> None:
        """Connect the ranks in this project's store, then set up as Lightning does at the start of each loop."""
        environment, device = self.cluster_environment, self.root_device
        if not distributed.is_initialized():
            backend = self.process_group_backend or distributed.get_default_backend_for_device(device)
            store = open_store(environment.topology)
            os.environ |= {"MASTER_ADDR": environment.main_address, "MASTER_PORT": str(environment.main_port)}
            distributed.init_process_group(
                backend,
                rank=environment.global_rank(),
                world_size=environment.world_size(),
                timeout=default_pg_timeout,
                device_id=device if device.type != "cpu" else None,
                store=store,
            )
        super().setup_distributed()

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Reduce like Lightning, but a sum without its extra barrier, and a mean of integers (such as numbers of rows) is no integer."""
        if reduce_op in ("mean", "avg") and isinstance(tensor, Tensor) and not tensor.is_floating_point():
            tensor = tensor.float()
        if reduce_op != "sum" or not isinstance(tensor, Tensor) or not distributed.is_initialized():
            return super().reduce(tensor, group, reduce_op)
        distributed.all_reduce(tensor, group=group)
        return tensor

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        """Gather a tensor [rows, ...] from each rank, see `join_ranks`. Raises ConfigError if they do not fit together."""
        if not distributed.is_initialized():
            return super().all_gather(tensor, group, sync_grads)
        sizes: list[Any] = [None] * distributed.get_world_size(group)
        distributed.all_gather_object(sizes, list(tensor.shape), group)
        if have_equal_rows(sizes):
            return super().all_gather(tensor, group, sync_grads)
        rows = [size[0] for size in sizes]
        padded = torch.cat([tensor, tensor.new_zeros(max(rows) - len(tensor), *tensor.shape[1:])])
        gathered = super().all_gather(padded, group, sync_grads)
        return join_ranks([part[:count] for part, count in zip(gathered, rows, strict=True)])


def join_ranks(parts: list[Tensor]) -> Tensor:
    """Return the tensors of all ranks as [ranks, rows, ...], or [1, all rows, ...] if uneven.

    In both cases `flatten(0, 1)` returns each row once, rank after rank. Raises ConfigError if the tensors don't fit together.
    """
    equal = have_equal_rows([list(part.shape) for part in parts])
    return torch.stack(parts) if equal else torch.cat(parts).unsqueeze(0)


def have_equal_rows(sizes: list[list[int]]) -> bool:
    """Return whether all shapes are equal. Raises ConfigError if they differ in more than their first dimension."""
    equal = sizes.count(sizes[0]) == len(sizes)
    if not equal and any(not size or size[1:] != sizes[0][1:] for size in sizes):
        raise ConfigError(
            f"all_gather got tensors of the shapes {listed(sizes)} from ranks 0 to {len(sizes) - 1}; only the first "
            "dimension may differ."
        )
    return equal
