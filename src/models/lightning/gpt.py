"""Decoder-only language model: RoPE, RMSNorm, SwiGLU, grouped-query attention.

x = embedding(tokens)
in each block:  x = x + attention(norm(x));  x = x + feed_forward(norm(x))
logits = head(norm(x)), with the weights of the embedding
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from src.models.gpt import (
    DEVIATION,
    EPSILON,
    THETA,
    Heads,
    Hidden,
    Layers,
    Length,
    Vocabulary,
    Width,
    hidden_width,
)

Rotation = tuple[Tensor, Tensor]
"""Cosine and sine of each position's angles, float32 [t, head width / 2] each."""


class GPT(nn.Module):
    """A network from tokens to the logits of the next tokens.

    Args:
        vocabulary: number of tokens, 0 to vocabulary - 1.
        length: tokens of a row in training, and the longest context in generation.
        layers: number of blocks.
        heads: number of attention heads, each width / heads wide.
        kv_heads: number of heads of keys and values, each shared by heads / kv_heads query heads.
        width: size of the vectors between the blocks.
        hidden: width of the feed-forward layers; None: see `hidden_width`.
        checkpoint_activations: whether to recompute the blocks in the backward pass: less memory, a third more time.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        length: Length,
        layers: Layers,
        heads: Heads,
        kv_heads: Heads,
        width: Width,
        hidden: Hidden | None,
        checkpoint_activations: bool,
    ) -> None:
        super().__init__()
        self.length, self.head_width = length, width // heads
        self.checkpoint_activations = checkpoint_activations
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(
            Block(heads, kv_heads, width, hidden or hidden_width(width)) for _ in range(layers)
        )
        self.norm = nn.RMSNorm(width, EPSILON)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight
        self._initialise(layers)

    def forward(self, tokens: Tensor, documents: Tensor | None = None) -> Tensor:
        """Return the logits [b, t, vocabulary] of the token after each of `tokens`.

        Args:
            tokens: integers [b, t].
            documents: number of each token's document, integers [b, t]: a token sees only tokens of the same document.
                None: each row is one document, and attention uses its fast causal kernel.
        """
        x = self.embedding(tokens)
        # RoPE makes attention depend only on distances, so positions need not restart with each document
        rotation = make_rotation(tokens.shape[1], self.head_width, x.device)
        visible = None if documents is None else causal_mask(documents)
        for block in self.blocks:
            if self.checkpoint_activations and torch.is_grad_enabled():
                x = checkpoint(block, x, rotation, visible, use_reentrant=False)
            else:
                x = block(x, rotation, visible)
        return self.head(self.norm(x))

    def _initialise(self, layers: int) -> None:
        """Draw normal weights as in GPT-2, smaller for outputs that are added to x."""
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                added = name.endswith(("attention.output.weight", "feed_forward.down.weight"))
                nn.init.normal_(parameter, std=DEVIATION / math.sqrt(2 * layers) if added else DEVIATION)


class Block(nn.Module):
    """A transformer block: attention, then feed-forward layers, each added to its input."""

    def __init__(self, heads: int, kv_heads: int, width: int, hidden: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(width, EPSILON)
        self.attention = Attention(heads, kv_heads, width)
        self.feed_forward_norm = nn.RMSNorm(width, EPSILON)
        self.feed_forward = FeedForward(width, hidden)

    def forward(self, x: Tensor, rotation: Rotation, visible: Tensor | None) -> Tensor:
        """Map [b, t, width] to the same shape, with `visible` from `causal_mask`."""
        x = x + self.attention(self.attention_norm(x), rotation, visible)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Attention(nn.Module):
    """Causal self-attention with grouped queries."""

    def __init__(self, heads: int, kv_heads: int, width: int) -> None:
        super().__init__()
        self.head_width = width // heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, kv_heads * self.head_width, bias=False)
        self.value = nn.Linear(width, kv_heads * self.head_width, bias=False)
        self.output = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, rotation: Rotation, visible: Tensor | None) -> Tensor:
        """Map [b, t, width] to the same shape."""
        query, key, value = (
            layer(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2)  # [b, heads, t, head width]
            for layer in (self.query, self.key, self.value)
        )
        seen = functional.scaled_dot_product_attention(
            rotate(query, rotation),
            rotate(key, rotation),
            value,
            attn_mask=visible,
            is_causal=visible is None,
            enable_gqa=True,
        )
        return self.output(seen.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """SwiGLU, https://arxiv.org/abs/2002.05202."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map [b, t, width] to the same shape."""
        return self.down(functional.silu(self.gate(x)) * self.up(x))


def make_rotation(length: int, head_width: int, device: torch.device) -> Rotation:
    """Return the rotation of each pair of numbers of a query or key, at each position."""
    pairs = torch.arange(0, head_width, 2, dtype=torch.float32, device=device) / head_width
    positions = torch.arange(length, dtype=torch.float32, device=device)
    angles = torch.outer(positions, THETA**-pairs)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Apply RoPE to x [b, heads, t, head width]: i pairs with i + head width / 2."""
    cosine, sine = rotation
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1).type_as(x)


def causal_mask(documents: Tensor) -> Tensor:
    """Return the mask, bool [b, 1, t, t]: a token sees its document up to itself."""
    same = documents[:, :, None] == documents[:, None, :]
    return same.tril()[:, None]
