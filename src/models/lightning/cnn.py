"""A small convolutional network for small images."""

from torch import nn

from train_anywhere.config import Channels, Probability


def cnn(shape: tuple[int, int, int], outputs: int, width: Channels, dropout: Probability) -> nn.Sequential:
    """Return two convolutions and a dense layer, from [b, C, H, W] to [b, outputs]."""
    height, across, channels = shape
    return nn.Sequential(
        *_convolution(channels, width),
        *_convolution(width, 2 * width),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * width * (height // 2) * (across // 2), 128),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(128, outputs),
    )


def _convolution(inputs: int, outputs: int) -> list[nn.Module]:
    """Return a convolution without bias, batch normalisation and ReLU."""
    return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
