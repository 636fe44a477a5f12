"""What a run asks of its device: products in TF32, weights channels last, a compiled network, fused optimizers."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from types import MethodType
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.types import Optimizable
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.strategies import Strategy
from torch import nn, optim

from train_anywhere.config.schema import Config
from train_anywhere.files.marked import Place, make
from train_anywhere.training.lightning.strategies.blocks import blocks_of
from train_anywhere.training.lightning.strategies.fsdp import FullyShardedStrategy


class BFloat16(MixedPrecision):
    """bf16-mixed. It scales no loss, so that gradients can be clipped for a fused optimizer too, which Lightning refuses for any."""

    def __init__(self, device: torch.device) -> None:
        super().__init__("bf16-mixed", device.type)

    def clip_gradients(self, optimizer: Optimizable, *arguments: Any, **named: Any) -> None:
        """As with float32."""
        Precision.clip_gradients(self, optimizer, *arguments, **named)


def computing_in(name: str, device: torch.device) -> dict[str, Any]:
    """What a Trainer is given for `trainer.precision`."""
    if name == "bf16-mixed":
        return {"plugins": BFloat16(device)}
    return {"precision": "32-true" if name == "32" else name}


def use_tf32(on: bool) -> None:
    """Whether GPUs multiply float32 matrices, and convolve, with the 10 bits of mantissa that their tensor cores take, or with all 23.

    See https://docs.pytorch.org/docs/stable/notes/cuda.html. On a CPU nothing changes.
    """
    if torch.cuda.is_available():
        torch.set_float32_matmul_precision("high" if on else "highest")
        torch.backends.cudnn.allow_tf32 = on


def suit(module: pl.LightningModule, config: Config, strategy: Strategy) -> None:
    """Prepare what is trained as the configuration asks. Names and values of weights stay what they are, and so do checkpoints."""
    network = getattr(module, "network", None)
    whole = network if isinstance(network, nn.Module) else module
    if config.trainer.channels_last:
        # convolutions go by their weights: what they compute lies channels last too, and the first one turns its input
        whole.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if config.trainer.compile:
        keep_programs_private()
        for part in compiled_parts(whole, strategy):
            part.forward = compiled(part)  # type: ignore[method-assign]


def keep_programs_private() -> None:
    """Let torch.compile run only what this user has compiled: its own folder in /tmp has a name that anyone may take first."""
    place = Place(Path(gettempdir()), (f"compiled-{os.getuid()}",), "programs of torch.compile")
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        try:
            make(place, private=True)
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(place.path)
        except OSError:  # someone has taken this name too
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = mkdtemp(prefix="compiled-")


def compiled_parts(network: nn.Module, strategy: Strategy) -> Sequence[nn.Module]:
    """What is compiled, each part by itself: the network of a task; the layers of a module with steps of its own, which Lightning
    never calls as a whole; with FSDP what is gathered by itself, for a graph ends there anyway."""
    if isinstance(strategy, FullyShardedStrategy):
        return blocks_of(network, strategy.blocks)
    if not isinstance(network, pl.LightningModule):
        return [network]
    return [layer for layer in network.children() if any(True for _ in layer.parameters())]


def compiled(part: nn.Module) -> Callable[..., Any]:
    """The forward pass of a part, for torch.compile to make faster: the part keeps the names of its weights, which torch.compile(part)
    would change. It is a method, so that a copy of the part computes with its own weights."""

    def forward(self: nn.Module, *inputs: Any, **named: Any) -> Any:
        """torch.compile begins at the first function that is not torch's own: without this one it would leave an nn.Sequential alone."""
        return type(self).forward(self, *inputs, **named)

    return MethodType(torch.compile(forward), part)


def uncompiled(error: Exception) -> str | None:
    """The sentence for an error of torch.compile; None for any other."""
    if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
        return None
    said = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return (
        f"trainer.compile=true, and torch.compile can't do that here: {said.strip().rstrip('.')}; use trainer.compile=false. On a CPU it "
        "needs a C++ compiler (g++), on a GPU a C compiler (gcc) and the headers of Python."
    )


def fuses(network: nn.Module, precision: str) -> bool:
    """Whether an optimizer of torch's own should update all weights in one kernel: on a GPU.

    Not with the scaled loss of 16-mixed: a fused optimizer takes the scale out itself, and Lightning refuses to clip such gradients.
    Nor with sparse gradients, of which only those of torch's own embeddings are known beforehand.
    """
    weights = [p for p in network.parameters() if p.requires_grad]
    sparse = any(getattr(layer, "sparse", False) is True for layer in network.modules())
    return (
        precision != "16-mixed" and not sparse and all(p.is_cuda and p.is_floating_point() for p in weights)
    )


def place_state(optimizer: optim.Optimizer) -> None:
    """Lay out what a checkpoint has restored as a fused optimizer, or another one, wants it: a run may have been saved by the other kind.

    A fused one counts its steps on the GPU, any other on the CPU; and its moments lie in memory as their weights do, channels last
    perhaps, while a checkpoint holds them row by row.
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
