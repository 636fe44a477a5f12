"""Limits, constants and the number of parameters of `model=gpt`."""

from typing import Annotated

from train_anywhere.config import Range

Layers = Annotated[int, Range(at_least=1, at_most=1024)]
Heads = Annotated[int, Range(at_least=1, at_most=1024)]
Length = Annotated[int, Range(at_least=1, at_most=1_048_576)]
Vocabulary = Annotated[int, Range(at_least=2, at_most=4_194_304)]
Width = Annotated[int, Range(at_least=2, at_most=65_536)]
Hidden = Annotated[int, Range(at_least=1, at_most=262_144)]

EPSILON = 1e-6
"""Epsilon of RMSNorm: added to the mean square before the square root."""

THETA = 10_000.0
"""Base of RoPE: the slowest rotation takes about 2 pi THETA positions, https://arxiv.org/abs/2104.09864."""

DEVIATION = 0.02
"""Standard deviation of the initial weights, as in GPT-2."""


def hidden_width(width: int) -> int:
    """Return 8/3 of the width, rounded up to a multiple of 64.

    SwiGLU has three matrices instead of two, so two thirds of the usual 4 * width gives as many weights, https://arxiv.org/abs/2002.05202.
    """
    return -(-8 * width // (3 * 64)) * 64


def parameter_count(
    vocabulary: int, layers: int, heads: int, kv_heads: int, width: int, hidden: int | None = None
) -> int:
    """Return the number of parameters. The last layer has the weights of the embedding."""
    attention = 2 * width * width + 2 * width * (width // heads * kv_heads)
    feed_forward = 3 * width * (hidden or hidden_width(width))
    norms = 2 * width
    return vocabulary * width + layers * (attention + feed_forward + norms) + width
