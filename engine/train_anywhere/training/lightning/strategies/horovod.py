"""Horovod as a Lightning strategy, which Lightning 2.0 removed.

There is no process group of torch.distributed: every collective uses Horovod and has a fixed name, by which Horovod
matches the ranks. The optimizer is not wrapped, because gradients are averaged when the backward pass returns: before
unscaling, clipping and the step.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import ParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from torch import Tensor, nn
from torchmetrics import Metric

from train_anywhere.distributed.horovod.initialize import explain_lost_ranks, import_horovod, start_horovod
from train_anywhere.distributed.topology import Topology
from train_anywhere.errors import ConfigError
from train_anywhere.training.lightning.strategies.ddp import TopologyEnvironment, join_ranks, node_devices
from train_anywhere.training.lightning.strategies.hooks import StrategyHooks

hvd = import_horovod("torch")


TYPES = {
    torch.bfloat16: torch.float32,
    **dict.fromkeys((torch.bool, torch.uint8, torch.int8, torch.int16), torch.int32),
}
"""Types that Horovod 0.28.1 can't send or sum, and those that are sent instead."""


def to_sendable(tensor: Tensor) -> Tensor:
    """Return a tensor that Horovod can send and sum, the same one if possible.

    Horovod does not support strides. It writes tensors in its own thread, where those created under `torch.inference_mode` can't be
    changed.
    """
    tensor = tensor.clone() if tensor.is_inference() else tensor.detach().contiguous()
    return tensor.to(TYPES.get(tensor.dtype, tensor.dtype))


class HorovodStrategy(StrategyHooks, ParallelStrategy):
    """Data parallelism over ranks that are already running, with one device each.

    The all-reduce of a gradient starts as soon as the backward pass has accumulated it; `post_backward` waits for all of them. A parameter
    without a gradient on a rank counts as 0 there, as in Horovod's own optimizer, because all ranks must send the same parameters. Sparse
    gradients (embeddings) are gathered and stay sparse.

    Args:
        compression: "fp16" to send gradients with 16 bits; those above 65504 become infinite.
    """

    strategy_name = "horovod"
    is_distributed = True  # else Lightning does not reduce what `self.log(..., sync_dist=True)` logs

    def __init__(
        self, topology: Topology, device: torch.device, compression: str = "none", **options: Any
    ) -> None:
        environment = TopologyEnvironment(topology)
        super().__init__(
            parallel_devices=node_devices(topology, device), cluster_environment=environment, **options
        )
        self.topology, self.compression = topology, getattr(hvd.Compression, compression)
        # names of the parameters whose gradients are averaged, and what is being sent of them
        self.names: dict[Tensor, str] = {}
        self.pending: dict[Tensor, tuple[Any, Any]] = {}
        self.sends, self.hooks = True, list[Any]()

    @property
    def root_device(self) -> torch.device:
        """The device of this rank."""
        return self.parallel_devices[self.local_rank]

    def setup_environment(self) -> None:
        """Connect the ranks."""
        super().setup_environment()
        start_horovod(self.topology, hvd)
        rank_zero_only.rank = self.global_rank

    def setup(self, trainer: pl.Trainer) -> None:
        """Move the model, then create optimizers and gradient hooks."""
        super().setup(trainer)
        if trainer.state.fn == TrainerFn.FITTING:
            self.update_trainable()

    def model_to_device(self) -> None:
        """Move the model to this rank's device, and broadcast rank 0's state. Raises ConfigError for torch's SyncBatchNorm."""
        refuse_torch_sync_batchnorm(self.model, self._layer_sync is not None)
        if self.root_device.type == "cuda":
            torch.cuda.set_device(self.root_device)
        self.model.to(self.root_device)
        self._broadcast_state([*self.model.named_parameters(), *self.model.named_buffers()])
        # with torch.distributed, torchmetrics would silently keep the numbers of one rank
        for metric in (m for m in self.model.modules() if isinstance(m, Metric)):
            metric.distributed_available_fn = lambda: self.world_size > 1
            metric.dist_sync_fn = self._gather_ragged

    def on_validation_start(self) -> None:
        """Send rank 0's buffers to all ranks: during training they differ (BatchNorm)."""
        self._broadcast_state(list(self.model.named_buffers()))

    def teardown(self) -> None:
        """Remove the hooks from the model."""
        for hook in self.hooks:
            hook.remove()
        for known in (self.hooks, self.names, self.pending):
            known.clear()
        super().teardown()

    def _broadcast_state(self, state: list[tuple[str, Tensor]]) -> None:
        if self.world_size == 1:
            return
        with self._collective():
            sent = [(f"state.{name}", to_sendable(tensor)) for name, tensor in state]
            hvd.broadcast_parameters(sent, root_rank=0)
            for (_, tensor), (_, packed) in zip(state, sent, strict=True):
                if packed.data_ptr() != tensor.data_ptr():
                    tensor.copy_(packed)

    def update_trainable(self) -> None:
        """Average also the gradients of newly trainable parameters. All ranks must call this."""
        named = [*self.model.named_parameters()] if self.world_size > 1 else []
        for name, p in named:
            if p.requires_grad and p not in self.names:
                self.names[p] = name
                self.hooks.append(p.register_post_accumulate_grad_hook(self._on_gradient))
        self.frozen = {p: name for name, p in named if p not in self.names}

    def post_backward(self, closure_loss: Tensor) -> None:
        """Wait until all gradients are averaged, which started during the backward pass."""
        super().post_backward(closure_loss)
        if not self.sends:
            return
        with explain_lost_ranks(self.topology):
            for parameter in self.names:
                if parameter not in self.pending and parameter.requires_grad:
                    if parameter.grad is None:
                        parameter.grad = torch.zeros_like(parameter)
                    self._send(parameter)
            for parameter in list(self.pending):
                handle, context = self.pending.pop(parameter)
                gradient = parameter.grad
                if gradient.is_sparse:
                    parameter.grad = handle()
                    continue
                average = self.compression.decompress(hvd.synchronize(handle), context)
                if average.data_ptr() != gradient.data_ptr():
                    gradient.copy_(average)

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Send nothing within the block, for all but the last batch of an accumulation."""
        self.sends = False
        try:
            yield
        finally:
            self.sends = True

    def _on_gradient(self, parameter: Tensor) -> None:
        if not self.sends:
            return
        if parameter in self.pending:
            raise ConfigError(
                f"the gradient of {self.names[parameter]} was computed twice in one backward pass, while it was being sent to the "
                "other ranks; use torch.utils.checkpoint with use_reentrant=False, or strategy=ddp."
            )
        self._send(parameter)

    def _send(self, parameter: Tensor) -> None:
        gradient, name = parameter.grad, f"gradient.{self.names[parameter]}"
        if gradient.is_sparse:
            self.pending[parameter] = hvd.sparse_allreduce_async(gradient, name, op=hvd.Average), None
            return
        packed, context = self.compression.compress(to_sendable(gradient))
        self.pending[parameter] = hvd.allreduce_async_(packed, name=name, op=hvd.Average), context

    @contextmanager
    def _collective(self) -> Iterator[None]:
        """Leave inference mode: Horovod allocates tensors in a thread where it is not set."""
        with torch.inference_mode(False), torch.no_grad(), explain_lost_ranks(self.topology):
            yield

    def wait_for_ranks(self, name: str | None) -> None:
        """Wait for all ranks."""
        if self.world_size > 1:
            with self._collective():
                hvd.allreduce(torch.zeros(1), name="barrier")

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Send any object that can be pickled from rank `src` to all ranks."""
        if self.world_size == 1:
            return obj
        with self._collective():
            return hvd.broadcast_object(obj, src, name="broadcast")

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Return the mean (of integers a float), sum, max, min or product over ranks."""
        if not isinstance(tensor, Tensor) or self.world_size == 1:
            return tensor
        refuse_group(group)
        op = OPERATION.search(str(reduce_op or "sum").lower())  # "mean", ReduceOp.SUM, <RedOpType.AVG: 1>
        if not op:
            raise ConfigError(
                f"strategy=horovod can't reduce with reduce_op={reduce_op}; use sum, mean, min, max or product."
            )
        with self._collective():
            reduced = hvd.allreduce(to_sendable(tensor), name=f"reduce.{op[0]}", op=OPERATIONS[op[0]])
        if op[0] in ("mean", "avg"):
            reduced = reduced / self.world_size
            return reduced.to(tensor.dtype) if tensor.is_floating_point() else reduced
        return reduced.to(tensor.dtype)

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        """Gather a tensor [rows, ...] from each rank. With `sync_grads` all have the same shape."""
        refuse_group(group)
        if self.world_size == 1:
            return tensor
        if sync_grads and torch.is_grad_enabled():
            return hvd.allgather(tensor.unsqueeze(0), name="all_gather")  # has a backward
        return join_ranks(self._gather_ragged(tensor))

    def _gather_ragged(self, tensor: Tensor, group: Any = None) -> list[Tensor]:
        """Return one tensor per rank, each of any shape."""
        with self._collective():
            parts = hvd.allgather_object(tensor.detach().to("cpu", copy=True), name="metric")
        return [part.to(tensor.device) for part in parts]


OPERATIONS = dict.fromkeys(("sum", "mean", "avg"), hvd.Sum)
OPERATIONS |= {"max": hvd.Max, "min": hvd.Min, "product": hvd.Product}
OPERATION = re.compile("|".join(OPERATIONS))


def refuse_group(group: Any) -> None:
    """Raise ConfigError for a process group, which only torch.distributed has."""
    if group is not None and group is not getattr(torch.distributed.group, "WORLD", None):
        raise ConfigError(
            "strategy=horovod has no process groups; reduce over all ranks, or use strategy=ddp."
        )


def refuse_torch_sync_batchnorm(model: nn.Module, requested: bool) -> None:
    """Raise ConfigError for torch's SyncBatchNorm, which would silently be a BatchNorm."""
    if requested or any(isinstance(m, nn.SyncBatchNorm) for m in model.modules()):
        raise ConfigError(
            "torch's SyncBatchNorm does not work with strategy=horovod; build the model with "
            "horovod.torch.SyncBatchNorm (GPUs only), or use strategy=ddp."
        )
