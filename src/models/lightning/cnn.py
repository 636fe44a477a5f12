"""A small convolutional network for small images."""

from torch import nn

from train_anywhere.config import Channels, Probability


def cnn(shape: tuple[int, int, int], outputs: int, width: Channels, dropout: Probability) -> nn.Sequential:
    """Return convolutions of `width` and 2 * `width` channels and a dense layer, from [b, C, H, W] to [b, outputs]; `shape` is H, W, C."""
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
    """Return a convolution without bias, because the normalisation that follows has one, and ReLU."""
    return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
