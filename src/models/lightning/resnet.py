"""ResNet-18 and ResNet-50: He et al. (2016), https://arxiv.org/abs/1512.03385.

A bottleneck strides in its 3x3 convolution (the variant known as v1.5), and weights start as in
He et al. (2015), https://arxiv.org/abs/1502.01852, counted over the outputs.
"""

from collections.abc import Callable

import torch
from torch import nn

WIDTHS = (64, 128, 256, 512)
Block = Callable[[int, int, int], nn.Module]


def resnet18(shape: tuple[int, int, int], outputs: int, small_images: bool) -> nn.Sequential:
    """Eight blocks of two 3x3 convolutions; `shape` is height, width, channels."""
    return _resnet(_basic, (2, 2, 2, 2), 1, shape[2], outputs, small_images)


def resnet50(shape: tuple[int, int, int], outputs: int, small_images: bool) -> nn.Sequential:
    """Sixteen bottlenecks of 1x1, 3x3 and 1x1 convolutions; `shape` is height, width, channels."""
    return _resnet(_bottleneck, (3, 4, 6, 3), 4, shape[2], outputs, small_images)


def _resnet(
    block: Block, depths: tuple[int, ...], expansion: int, channels: int, outputs: int, small_images: bool
) -> nn.Sequential:
    layers = [_small_stem(channels) if small_images else _stem(channels)]
    inputs = WIDTHS[0]
    for stage, (width, depth) in enumerate(zip(WIDTHS, depths, strict=True)):
        for number in range(depth):
            stride = 2 if stage > 0 and number == 0 else 1
            layers.append(block(inputs, width, stride))
            inputs = width * expansion
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, outputs))
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return network


class Residual(nn.Module):
    """relu(body(x) + shortcut(x)); the shortcut is a 1x1 convolution if the shape changes."""

    def __init__(self, body: nn.Module, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = body
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else _conv_norm(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[b, inputs, H, W] to [b, outputs, H / stride, W / stride]."""
        return torch.relu(self.body(x) + self.shortcut(x))


def _basic(inputs: int, width: int, stride: int) -> nn.Module:
    body = nn.Sequential(_conv_norm(inputs, width, 3, stride), nn.ReLU(), _conv_norm(width, width, 3))
    return Residual(body, inputs, width, stride)


def _bottleneck(inputs: int, width: int, stride: int) -> nn.Module:
    body = nn.Sequential(
        _conv_norm(inputs, width, 1),
        nn.ReLU(),
        _conv_norm(width, width, 3, stride),
        nn.ReLU(),
        _conv_norm(width, 4 * width, 1),
    )
    return Residual(body, inputs, 4 * width, stride)


def _stem(channels: int) -> nn.Module:
    """A quarter of the height and width."""
    return nn.Sequential(
        _conv_norm(channels, WIDTHS[0], 7, 2), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)
    )


def _small_stem(channels: int) -> nn.Module:
    """The same height and width: images of 8 to 64 pixels have none to lose."""
    return nn.Sequential(_conv_norm(channels, WIDTHS[0], 3), nn.ReLU())


def _conv_norm(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))
