"""What the two sides of `gpt` have in common: its numbers, and how many parameters they make."""

from typing import Annotated

from train_anywhere.config import Range

Layers = Annotated[int, Range(at_least=1, at_most=1024)]
Heads = Annotated[int, Range(at_least=1, at_most=1024)]
Length = Annotated[int, Range(at_least=1, at_most=1_048_576)]
Vocabulary = Annotated[int, Range(at_least=2, at_most=4_194_304)]
Width = Annotated[int, Range(at_least=2, at_most=65_536)]
Hidden = Annotated[int, Range(at_least=1, at_most=262_144)]

EPSILON = 1e-6
"""Added to a mean square before its root is divided by."""

THETA = 10_000.0
"""The slowest of the rotations turns once in about 2 pi times so many positions, https://arxiv.org/abs/2104.09864."""

DEVIATION = 0.02
"""Standard deviation of the initial weights, as in GPT-2."""


def hidden_width(width: int) -> int:
    """Of the feed-forward part where none is given: 8/3 of the width, rounded up to a multiple of 64.

    SwiGLU has three matrices where a plain one with the hidden width 4 * width has two: with two thirds of that they are as large,
    https://arxiv.org/abs/2002.05202.
    """
    return -(-8 * width // (3 * 64)) * 64


def parameters(
    vocabulary: int, layers: int, heads: int, kv_heads: int, width: int, hidden: int | None = None
) -> int:
    """How many parameters these numbers make; the embedding counts once, for it is the last layer too."""
    attention = 2 * width * width + 2 * width * (width // heads * kv_heads)
    feed_forward = 3 * width * (hidden or hidden_width(width))
    norms = 2 * width
    return vocabulary * width + layers * (attention + feed_forward + norms) + width


def flops_per_token(
    vocabulary: int,
    length: int,
    layers: int,
    heads: int,
    kv_heads: int,
    width: int,
    hidden: int | None = None,
) -> float:
    """Operations of one token in training, forward and backward: 6 N + 12 L d T, https://arxiv.org/abs/2204.02311, appendix B.

    Each of the N weights multiplies and adds once forward and twice backward; the second term is attention, over all T positions of a
    row, also those that are masked. What is computed twice to save memory does not count.
    """
    return (
        6.0 * parameters(vocabulary, layers, heads, kv_heads, width, hidden) + 12.0 * layers * width * length
    )
