"""Hardware options of a run: TF32, channels-last weights, torch.compile, fused optimizers."""

from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.strategies import Strategy
from torch import nn, optim

from train_anywhere.config.schema import Trainer
from train_anywhere.training.lightning.strategies.fsdp import FullyShardedStrategy, find_blocks


class BFloat16(MixedPrecision):
    """Precision bf16-mixed that clips gradients for a fused optimizer, as Lightning does only with float32."""

    clip_gradients = Precision.clip_gradients


def precision_arguments(name: str, device: torch.device) -> dict[str, Any]:
    """Return the arguments of Lightning's Trainer for `trainer.precision`."""
    return {"plugins": BFloat16(name, device.type)} if name == "bf16-mixed" else {"precision": name}


def apply_hardware_options(module: pl.LightningModule, trainer: Trainer, strategy: Strategy) -> None:
    """Apply `trainer.channels_last` and `trainer.compile`. Checkpoints stay the same."""
    network = getattr(module, "network", None)
    whole = network if isinstance(network, nn.Module) else module
    if trainer.channels_last:
        # a convolution with channels-last weights has channels-last outputs; the first one converts its input
        whole.to(memory_format=torch.channels_last)
    if trainer.compile:
        for part in find_compiled_parts(whole, strategy):
            part.forward = compile_forward(part)


def find_compiled_parts(network: nn.Module, strategy: Strategy) -> Sequence[nn.Module]:
    """Return the modules that are compiled separately.

    For a task, this is its network. For a LightningModule, which Lightning never calls as a whole, these are its layers. With FSDP,
    these are the blocks that are gathered as a unit, where a graph ends anyway.
    """
    if isinstance(strategy, FullyShardedStrategy):
        return find_blocks(network, strategy.blocks)
    if not isinstance(network, pl.LightningModule):
        return [network]
    return [layer for layer in network.children() if any(True for _ in layer.parameters())]


def compile_forward(part: nn.Module) -> Callable[..., Any]:
    """Return the compiled forward method of a module.

    Unlike torch.compile(part), this keeps the names of the weights. It is a method, so that a copy of the module uses its own weights.
    """

    def forward(self: nn.Module, *inputs: Any, **named: Any) -> Any:
        """Call the module's forward. torch.compile skips functions of torch."""
        return type(self).forward(self, *inputs, **named)

    return MethodType(torch.compile(forward), part)


def explain_compile_error(error: Exception) -> str | None:
    """Return the message for an error of torch.compile, or None for any other error."""
    if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
        return None
    message = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return (
        f"trainer.compile=true, but torch.compile failed: {message.strip().rstrip('.')}; use trainer.compile=false. On a CPU it needs a "
        "C++ compiler (g++), on a GPU a C compiler (gcc) and the headers of Python."
    )


def can_fuse(network: nn.Module, precision: str) -> bool:
    """Return whether torch's optimizers can update all weights in one kernel, which needs a GPU.

    They can't with the scaled loss of 16-mixed: a fused optimizer unscales gradients itself, and Lightning refuses to clip those.
    They can't with sparse gradients either, of which only those of torch's embeddings are known in advance.
    """
    weights = (p for p in network.parameters() if p.requires_grad)
    sparse = any(getattr(layer, "sparse", False) is True for layer in network.modules())
    fits = precision != "16-mixed" and not sparse
    return fits and all(p.is_cuda and p.is_floating_point() for p in weights)


def match_state_layout(optimizer: optim.Optimizer) -> None:
    """Convert a restored optimizer state to the layout that the optimizer needs.

    A fused optimizer counts its steps on the GPU, any other on the CPU. Its moments must have the memory layout of their weights,
    such as channels last, while a checkpoint stores them row by row.
    """
    for group in optimizer.param_groups:
        for weight in group["params"]:
            for name, value in optimizer.state.get(weight, {}).items():
                if not isinstance(value, torch.Tensor):
                    continue
                if name == "step":
                    optimizer.state[weight][name] = value.to(weight.device if group.get("fused") else "cpu")
                elif value.shape == weight.shape and value.stride() != weight.stride():
                    optimizer.state[weight][name] = torch.empty_like(weight, dtype=value.dtype).copy_(value)
