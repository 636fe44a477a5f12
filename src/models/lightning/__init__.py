"""Functions that return an `nn.Module`. Images have channels first, [b, C, H, W]."""

from torch import nn


def count_parameters(network: nn.Module) -> int:
    """Return the number of trainable parameters."""
    return sum(p.numel() for p in network.parameters() if p.requires_grad)
