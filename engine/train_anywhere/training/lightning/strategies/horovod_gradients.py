"""Average gradients over Horovod's ranks while the backward pass computes others."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from train_anywhere.distributed.horovod.initialize import import_horovod
from train_anywhere.errors import ConfigError

hvd = import_horovod("torch")

INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16)
"""Types that Horovod 0.28.1 can't sum."""


def to_sendable(tensor: Tensor) -> Tensor:
    """Return a tensor that Horovod can send, the same one if possible.

    Horovod supports neither bfloat16, bool nor strides. It writes tensors in its own thread, where those created under
    `torch.inference_mode` can't be changed.
    """
    tensor = tensor.clone() if tensor.is_inference() else tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.float()
    return tensor.to(torch.uint8) if tensor.dtype == torch.bool else tensor


def to_summable(tensor: Tensor) -> Tensor:
    """Return a tensor that Horovod can sum over ranks, for which it supports fewer types."""
    return to_sendable(tensor.to(torch.int32) if tensor.dtype in INTEGERS else tensor)


class GradientExchange:
    """Replaces the gradients of a module by their averages over all ranks.

    The all-reduce of a gradient starts as soon as the backward pass has accumulated it; `finish` waits for all of them. A
    parameter without a gradient on a rank counts as 0 there, as in Horovod's own optimizer, because all ranks must send the
    same parameters. Sparse gradients (embeddings) are gathered and stay sparse.

    Args:
        module: the module, already on its device.
        compression: "fp16" to send gradients with 16 bits; those above 65504 become infinite.
    """

    def __init__(self, module: nn.Module, compression: str) -> None:
        self.compression = getattr(hvd.Compression, compression)
        self.names: dict[Tensor, str] = {}
        self.pending: dict[Tensor, tuple[Any, Any]] = {}
        self.active = True
        self.hooks: list[Any] = []
        self.add_parameters(module)

    def add_parameters(self, module: nn.Module) -> None:
        """Average also the gradients of all parameters that are trainable now."""
        for name, p in module.named_parameters():
            if p.requires_grad and p not in self.names:
                self.names[p] = name
                self.hooks.append(p.register_post_accumulate_grad_hook(self._on_gradient))
        self.frozen = {p: name for name, p in module.named_parameters() if p not in self.names}

    def finish(self) -> None:
        """Wait until all gradients are averaged; called after the backward pass, before anything reads them."""
        if not self.active:
            return
        for parameter in self.names:
            if parameter not in self.pending and parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                self._send(parameter)
        for parameter in list(self.pending):
            self._receive(parameter)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Only accumulate gradients on this rank within the block."""
        self.active = False
        try:
            yield
        finally:
            self.active = True

    def close(self) -> None:
        """Remove the hooks from the module."""
        for hook in self.hooks:
            hook.remove()
        self.pending.clear()

    def _on_gradient(self, parameter: Tensor) -> None:
        if not self.active:
            return
        if parameter in self.pending:
            raise ConfigError(
                f"the gradient of {self.names[parameter]} was computed twice in one backward pass, while it was being sent to the "
                "other ranks; use torch.utils.checkpoint with use_reentrant=False, or strategy=ddp."
            )
        self._send(parameter)

    def _send(self, parameter: Tensor) -> None:
        gradient, name = parameter.grad, f"gradient.{self.names[parameter]}"
        assert gradient is not None
        if gradient.is_sparse:
            self.pending[parameter] = hvd.sparse_allreduce_async(gradient, name, op=hvd.Average), None
            return
        packed, context = self.compression.compress(to_summable(gradient))
        self.pending[parameter] = hvd.allreduce_async_(packed, name=name, op=hvd.Average), context

    def _receive(self, parameter: Tensor) -> None:
        handle, context = self.pending.pop(parameter)
        gradient = parameter.grad
        assert gradient is not None
        if gradient.is_sparse:
            parameter.grad = handle()
            return
        average = self.compression.decompress(hvd.synchronize(handle), context)
        if average.data_ptr() != gradient.data_ptr():
            gradient.copy_(average)
