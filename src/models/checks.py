"""Checks that a model fits the data, before a run starts: the functions that `_check_` names in configs/model.

Each takes facts of the data and arguments of the model by name, and returns an error message, or "" if the model can be built.
"""

import itertools
import math

LARGEST = 2**31
"""Largest number of weights in one layer: 8 GiB of float32."""


def cnn(shape: tuple[int, ...], width: int) -> str:
    """Check that the image can be halved, and the size of the hidden layer that sees all of it; `shape` is H, W, C."""
    height, across, *_ = shape
    if min(height, across) < 2:
        return f"model=cnn halves an image, and images of {height}x{across} pixels are too small for that; use model=mlp or larger images."
    return _check_size(f"model.width={width}", 2 * width * (height // 2) * (across // 2) * 128, shape)


def mlp(shape: tuple[int, ...], hidden: list[int]) -> str:
    """Check the size of each layer."""
    sizes = [math.prod(shape), *hidden]
    return _check_size(
        f"model.hidden={hidden}", max((a * b for a, b in itertools.pairwise(sizes)), default=0), shape
    )


def _check_size(key: str, weights: int, shape: tuple[int, ...]) -> str:
    if weights <= LARGEST:
        return ""
    size = "x".join(map(str, shape))
    return f"{key} with inputs of {size} is a layer of {weights:,} weights, over the limit of {LARGEST:,}; use a smaller one."


def gpt(heads: int, kv_heads: int, width: int) -> str:
    """Check that the heads divide the width, and the key heads the query heads."""
    if width % heads:
        return f"model.heads={heads} does not divide model.width={width}; use model.width={-(-width // (2 * heads)) * 2 * heads}."
    if width // heads % 2:
        return (
            f"model.heads={heads} with model.width={width} makes heads {width // heads} wide, and RoPE needs an even width; use "
            f"model.width={2 * width}, or another model.heads."
        )
    if heads % kv_heads:
        fitting = max(n for n in range(1, min(heads, kv_heads) + 1) if heads % n == 0)
        return f"model.kv_heads={kv_heads} does not divide model.heads={heads}; use model.kv_heads={fitting}."
    return ""
