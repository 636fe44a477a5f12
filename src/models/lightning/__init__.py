"""Models as torch modules: functions that return an `nn.Module`. Images come with channels first, [b, C, H, W]."""

from torch import nn


def parameter_count(network: nn.Module) -> int:
    """Number of trainable parameters."""
    return sum(p.numel() for p in network.parameters() if p.requires_grad)
