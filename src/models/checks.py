"""Whether a model can be built for the data, before a run starts: the functions that `_check_` names in configs/model.

Each takes what is known of the data and the model's arguments by name, and returns a sentence, or "" if all is well.
"""

import itertools
import math

LARGEST = 2**31
"""Weights of one layer: 8 GiB."""


def cnn(shape: tuple[int, ...], width: int) -> str:
    """The image is halved once, and one hidden layer sees all of it; `shape` is H, W, C."""
    height, across, *_ = shape
    if min(height, across) < 2:
        return f"model=cnn halves an image, and of {height}x{across} pixels nothing is left; use model=mlp or larger images."
    return _too_large(f"model.width={width}", 2 * width * (height // 2) * (across // 2) * 128, shape)


def mlp(shape: tuple[int, ...], hidden: list[int]) -> str:
    """Each layer's weights."""
    sizes = [math.prod(shape), *hidden]
    return _too_large(
        f"model.hidden={hidden}", max((a * b for a, b in itertools.pairwise(sizes)), default=0), shape
    )


def _too_large(key: str, weights: int, shape: tuple[int, ...]) -> str:
    if weights <= LARGEST:
        return ""
    of = "x".join(map(str, shape))
    return f"{key} with images of {of} is a layer of {weights:,} weights, more than memory; use less."


def gpt(heads: int, kv_heads: int, width: int) -> str:
    """Heads share the width evenly, and queries the keys."""
    if width % heads:
        return f"model.heads={heads} do not share model.width={width} evenly; use model.width={-(-width // (2 * heads)) * 2 * heads}."
    if width // heads % 2:
        return (
            f"model.heads={heads} of model.width={width} are {width // heads} wide, and RoPE turns pairs of numbers; use "
            f"model.width={2 * width}, or another model.heads."
        )
    if heads % kv_heads:
        fitting = max(n for n in range(1, min(heads, kv_heads) + 1) if heads % n == 0)
        return f"model.kv_heads={kv_heads} are not shared evenly by model.heads={heads}; use model.kv_heads={fitting}."
    return ""
