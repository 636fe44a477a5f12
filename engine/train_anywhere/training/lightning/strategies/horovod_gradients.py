"""Average gradients over Horovod's ranks while backward is still computing others."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from train_anywhere.distributed.horovod.initialize import import_horovod
from train_anywhere.errors import ConfigError

hvd = import_horovod("torch")

INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16)
"""Types that Horovod 0.28.1 can't add up."""


def sendable(tensor: Tensor) -> Tensor:
    """The tensor as Horovod can send it, itself where possible.

    Horovod knows no bfloat16, no bool and no strides. It fills tensors in a thread of its own, where those
    made under `torch.inference_mode` can't be changed.
    """
    tensor = tensor.clone() if tensor.is_inference() else tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.float()
    return tensor.to(torch.uint8) if tensor.dtype == torch.bool else tensor


def addable(tensor: Tensor) -> Tensor:
    """The same for adding up over ranks, where Horovod knows fewer types."""
    return sendable(tensor.to(torch.int32) if tensor.dtype in INTEGERS else tensor)


class GradientExchange:
    """Replaces the gradients of a module by their average over all ranks.

    When backward has added up the gradient of a parameter, its all-reduce starts at once; `finish` waits for
    all. A parameter that took no part in a rank's loss counts as a gradient of 0 there, as in Horovod's own
    optimizer: all ranks must send the same. Sparse gradients (embeddings) are gathered and stay sparse.

    Args:
        module: on its device already.
        compression: "fp16" sends 16 bits per number; larger gradients than 65504 become infinite.
    """

    def __init__(self, module: nn.Module, compression: str) -> None:
        self.compression = getattr(hvd.Compression, compression)
        self.names: dict[Tensor, str] = {}
        self.pending: dict[Tensor, tuple[Any, Any]] = {}
        self.active = True
        self.hooks: list[Any] = []
        self.follow(module)

    def follow(self, module: nn.Module) -> None:
        """Average the gradients of all parameters that are trained now, besides those from before."""
        for name, p in module.named_parameters():
            if p.requires_grad and p not in self.names:
                self.names[p] = name
                self.hooks.append(p.register_post_accumulate_grad_hook(self._on_gradient))
        self.frozen = {p: name for name, p in module.named_parameters() if p not in self.names}

    def finish(self) -> None:
        """Wait until all gradients are averages; called after backward and before anything reads them."""
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
    def paused(self) -> Iterator[None]:
        """Within the block gradients only add up on this rank."""
        self.active = False
        try:
            yield
        finally:
            self.active = True

    def close(self) -> None:
        """Leave the module as it was."""
        for hook in self.hooks:
            hook.remove()
        self.pending.clear()

    def _on_gradient(self, parameter: Tensor) -> None:
        if not self.active:
            return
        if parameter in self.pending:
            raise ConfigError(
                f"the gradient of {self.names[parameter]} came twice in one backward, while it was on "
                "its way to the other ranks: use torch.utils.checkpoint with use_reentrant=False, or "
                "strategy=ddp."
            )
        self._send(parameter)

    def _send(self, parameter: Tensor) -> None:
        gradient, name = parameter.grad, f"gradient.{self.names[parameter]}"
        assert gradient is not None
        if gradient.is_sparse:
            self.pending[parameter] = hvd.sparse_allreduce_async(gradient, name, op=hvd.Average), None
            return
        packed, how = self.compression.compress(addable(gradient))
        self.pending[parameter] = hvd.allreduce_async_(packed, name=name, op=hvd.Average), how

    def _receive(self, parameter: Tensor) -> None:
        handle, how = self.pending.pop(parameter)
        gradient = parameter.grad
        assert gradient is not None
        if gradient.is_sparse:
            parameter.grad = handle()
            return
        average = self.compression.decompress(hvd.synchronize(handle), how)
        if average.data_ptr() != gradient.data_ptr():
            gradient.copy_(average)
