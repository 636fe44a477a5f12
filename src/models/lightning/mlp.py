"""A multilayer perceptron."""

import math

from torch import nn


def mlp(shape: tuple[int, int, int], classes: int, hidden: list[int], dropout: float) -> nn.Sequential:
    """Layers of the widths `hidden`, each with ReLU and dropout; `shape` is height, width, channels."""
    layers: list[nn.Module] = [nn.Flatten()]
    width = math.prod(shape)
    for out in hidden:
        layers += [nn.Linear(width, out), nn.ReLU(), nn.Dropout(dropout)]
        width = out
    return nn.Sequential(*layers, nn.Linear(width, classes))
