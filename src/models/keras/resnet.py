"""ResNet-18 and ResNet-50: He et al. (2016), https://arxiv.org/abs/1512.03385.

A bottleneck has its stride in the 3x3 convolution (the variant known as v1.5). Initial weights are those of
He et al. (2015), https://arxiv.org/abs/1502.01852, with the fan-out.
"""

from collections.abc import Callable

import keras
from keras import layers

Block = Callable[[keras.KerasTensor, int, int], keras.KerasTensor]


def resnet18(shape: tuple[int, int, int], outputs: int, small_images: bool) -> keras.Model:
    """Return ResNet-18, eight basic blocks, from [b, H, W, C] to [b, outputs]."""
    return _resnet("resnet18", _basic_block, (2, 2, 2, 2), shape, outputs, small_images)


def resnet50(shape: tuple[int, int, int], outputs: int, small_images: bool) -> keras.Model:
    """Return ResNet-50, sixteen bottlenecks, from [b, H, W, C] to [b, outputs]."""
    return _resnet("resnet50", _bottleneck_block, (3, 4, 6, 3), shape, outputs, small_images)


def _resnet(
    name: str,
    block: Block,
    depths: tuple[int, ...],
    shape: tuple[int, int, int],
    outputs: int,
    small_images: bool,
) -> keras.Model:
    """Return four stages of blocks, each with twice the filters of the one before."""
    image = keras.Input(shape)
    x = _stem(image, small_images)
    for stage, count in enumerate(depths):
        for number in range(count):
            x = block(x, 64 * 2**stage, 2 if stage and not number else 1)
    x = layers.GlobalAveragePooling2D()(x)
    x = layers.Dense(outputs, dtype="float32")(x)  # float32 in any precision: the loss needs it
    return keras.Model(image, x, name=name)


def _stem(image: keras.KerasTensor, small_images: bool) -> keras.KerasTensor:
    """Apply the first convolution: 7x7 and pooling, or 3x3 at full size for small images."""
    if small_images:
        return layers.ReLU()(conv_norm(image, 64, 3))
    x = layers.ReLU()(conv_norm(image, 64, 7, stride=2))
    # zero padding does not change the maximum after ReLU
    return layers.MaxPooling2D(3, strides=2)(layers.ZeroPadding2D(1)(x))


def _basic_block(x: keras.KerasTensor, filters: int, stride: int) -> keras.KerasTensor:
    """Apply two 3x3 convolutions and the shortcut (resnet18)."""
    y = layers.ReLU()(conv_norm(x, filters, 3, stride))
    y = conv_norm(y, filters, 3)
    return layers.ReLU()(layers.Add()([_shortcut(x, filters, stride), y]))


def _bottleneck_block(x: keras.KerasTensor, filters: int, stride: int) -> keras.KerasTensor:
    """Apply 1x1, 3x3 and four times wider 1x1 convolutions, and the shortcut."""
    y = layers.ReLU()(conv_norm(x, filters, 1))
    y = layers.ReLU()(conv_norm(y, filters, 3, stride))
    y = conv_norm(y, 4 * filters, 1)
    return layers.ReLU()(layers.Add()([_shortcut(x, 4 * filters, stride), y]))


def _shortcut(x: keras.KerasTensor, filters: int, stride: int) -> keras.KerasTensor:
    """Return `x`, projected by a 1x1 convolution if the block changes its shape."""
    return x if stride == 1 and x.shape[-1] == filters else conv_norm(x, filters, 1, stride)


def conv_norm(x: keras.KerasTensor, filters: int, size: int, stride: int = 1) -> keras.KerasTensor:
    """Apply a convolution without bias, padded on all four sides, and normalise."""
    he = keras.initializers.VarianceScaling(2.0, mode="fan_out", distribution="untruncated_normal")
    padding = "same" if stride == 1 else "valid"  # with a stride, "same" pads right and bottom only
    if stride > 1 and size > 1:
        x = layers.ZeroPadding2D(size // 2)(x)
    x = layers.Conv2D(filters, size, stride, padding, use_bias=False, kernel_initializer=he)(x)
    return layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)
