"""ResNet-18 and ResNet-50: He et al. (2016), https://arxiv.org/abs/1512.03385.

A bottleneck has its stride in the 3x3 convolution (the variant known as v1.5). Initial weights are those of
He et al. (2015), https://arxiv.org/abs/1502.01852, with the fan-out.
"""

from collections.abc import Callable

import torch
from torch import nn

WIDTHS = (64, 128, 256, 512)
Block = Callable[[int, int, int], nn.Module]


def resnet18(shape: tuple[int, int, int], outputs: int, small_images: bool) -> nn.Sequential:
    """Return ResNet-18, eight basic blocks, from [b, C, H, W] to [b, outputs]."""
    return _resnet(_basic_block, (2, 2, 2, 2), 1, shape[2], outputs, small_images)


def resnet50(shape: tuple[int, int, int], outputs: int, small_images: bool) -> nn.Sequential:
    """Return ResNet-50, sixteen bottlenecks, from [b, C, H, W] to [b, outputs]."""
    return _resnet(_bottleneck_block, (3, 4, 6, 3), 4, shape[2], outputs, small_images)


def _resnet(
    block: Block, depths: tuple[int, ...], expansion: int, channels: int, outputs: int, small_images: bool
) -> nn.Sequential:
    layers = [_stem(channels, small_images)]
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
    """A residual block, relu(body(x) + shortcut(x)), with a 1x1 shortcut between shapes."""

    def __init__(self, body: nn.Module, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = body
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else conv_norm(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [b, inputs, H, W] to [b, outputs, H / stride, W / stride]."""
        return torch.relu(self.body(x) + self.shortcut(x))


def _basic_block(inputs: int, width: int, stride: int) -> nn.Module:
    body = nn.Sequential(conv_norm(inputs, width, 3, stride), nn.ReLU(), conv_norm(width, width, 3))
    return Residual(body, inputs, width, stride)


def _bottleneck_block(inputs: int, width: int, stride: int) -> nn.Module:
    body = nn.Sequential(
        conv_norm(inputs, width, 1),
        nn.ReLU(),
        conv_norm(width, width, 3, stride),
        nn.ReLU(),
        conv_norm(width, 4 * width, 1),
    )
    return Residual(body, inputs, 4 * width, stride)


def _stem(channels: int, small_images: bool) -> nn.Module:
    """Return the first convolution: 7x7 and pooling, or 3x3 at full size for small images."""
    if small_images:
        return nn.Sequential(conv_norm(channels, WIDTHS[0], 3), nn.ReLU())
    return nn.Sequential(
        conv_norm(channels, WIDTHS[0], 7, 2), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)
    )


def conv_norm(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution without bias, padded on all four sides, and batch normalisation."""
    convolution = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))
