"""A multilayer perceptron."""

import math

from torch import nn

from train_anywhere.config import HiddenLayers, Probability


def mlp(shape: tuple[int, ...], outputs: int, hidden: HiddenLayers, dropout: Probability) -> nn.Sequential:
    """Return layers of the widths `hidden` that map rows of any shape to [b, outputs]."""
    layers: list[nn.Module] = [nn.Flatten()]
    width = math.prod(shape)
    for out in hidden:
        layers += [nn.Linear(width, out), nn.ReLU(), nn.Dropout(dropout)]
        width = out
    return nn.Sequential(*layers, nn.Linear(width, outputs))
