"""ResNet-18 and ResNet-50: He et al. (2016), https://arxiv.org/abs/1512.03385.

A bottleneck strides in its 3x3 convolution (the variant known as v1.5), and weights start as in
He et al. (2015), https://arxiv.org/abs/1502.01852, for the outputs of a layer.
"""

from collections.abc import Callable

import keras
from keras import layers

Block = Callable[[keras.KerasTensor, int, int], keras.KerasTensor]


def resnet18(shape: tuple[int, int, int], outputs: int, small_images: bool) -> keras.Model:
    """Images [b, H, W, C] to [b, outputs] by eight blocks of two 3x3 convolutions; `shape` is H, W, C."""
    return _resnet("resnet18", basic, (2, 2, 2, 2), shape, outputs, small_images)


def resnet50(shape: tuple[int, int, int], outputs: int, small_images: bool) -> keras.Model:
    """Images [b, H, W, C] to [b, outputs] by sixteen bottlenecks; `shape` is H, W, C."""
    return _resnet("resnet50", bottleneck, (3, 4, 6, 3), shape, outputs, small_images)


def _resnet(
    name: str,
    block: Block,
    depths: tuple[int, ...],
    shape: tuple[int, int, int],
    outputs: int,
    small_images: bool,
) -> keras.Model:
    """Four stages of blocks, each with twice the filters of the one before; halved five times, or three times for small images."""
    image = keras.Input(shape)
    x = stem(image, small_images)
    for stage, count in enumerate(depths):
        for number in range(count):
            x = block(x, 64 * 2**stage, 2 if stage and not number else 1)
    x = layers.GlobalAveragePooling2D()(x)
    x = layers.Dense(outputs, dtype="float32")(x)  # float32 with any precision: the loss needs it
    return keras.Model(image, x, name=name)


def stem(image: keras.KerasTensor, small_images: bool) -> keras.KerasTensor:
    """The first convolution: 7x7 and pooling to a quarter of the size; 3x3 at full size for small images."""
    if small_images:
        return layers.ReLU()(conv_norm(image, 64, 3))
    x = layers.ReLU()(conv_norm(image, 64, 7, stride=2))
    # after ReLU, zeros never win the maximum
    return layers.MaxPooling2D(3, strides=2)(layers.ZeroPadding2D(1)(x))


def basic(x: keras.KerasTensor, filters: int, stride: int) -> keras.KerasTensor:
    """Two 3x3 convolutions and the shortcut (resnet18)."""
    y = layers.ReLU()(conv_norm(x, filters, 3, stride))
    y = conv_norm(y, filters, 3)
    return layers.ReLU()(layers.Add()([shortcut(x, filters, stride), y]))


def bottleneck(x: keras.KerasTensor, filters: int, stride: int) -> keras.KerasTensor:
    """1x1, 3x3 and 1x1 convolutions, four times wider at the end, and the shortcut (resnet50)."""
    y = layers.ReLU()(conv_norm(x, filters, 1))
    y = layers.ReLU()(conv_norm(y, filters, 3, stride))
    y = conv_norm(y, 4 * filters, 1)
    return layers.ReLU()(layers.Add()([shortcut(x, 4 * filters, stride), y]))


def shortcut(x: keras.KerasTensor, filters: int, stride: int) -> keras.KerasTensor:
    """`x` itself, or projected by a 1x1 convolution if the block changes its shape."""
    return x if stride == 1 and x.shape[-1] == filters else conv_norm(x, filters, 1, stride)


def conv_norm(x: keras.KerasTensor, filters: int, size: int, stride: int = 1) -> keras.KerasTensor:
    """Convolution without bias, then batch normalisation; the padding is the same on all four sides."""
    he = keras.initializers.VarianceScaling(2.0, mode="fan_out", distribution="untruncated_normal")
    padding = "same" if stride == 1 else "valid"  # with a stride, "same" would pad right and bottom only
    if stride > 1 and size > 1:
        x = layers.ZeroPadding2D(size // 2)(x)
    x = layers.Conv2D(filters, size, stride, padding, use_bias=False, kernel_initializer=he)(x)
    return layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)
