"""A decoder for language, as most are built today: RoPE, RMSNorm, SwiGLU, grouped-query attention, tied embeddings.

x = embedding(tokens)
in each block:  x = x + attention(norm(x));  x = x + feed_forward(norm(x))
logits = head(norm(x)), with the embedding's own weights
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
    flops_per_token,
    hidden_width,
)

Rotation = tuple[Tensor, Tensor]
"""Cosine and sine of each position's angles, float32 [t, head width / 2] each."""


class GPT(nn.Module):
    """Tokens to the logits of the tokens that follow.

    Args:
        vocabulary: tokens are 0 .. vocabulary - 1.
        length: tokens of a row in training; what is generated from sees no more of them.
        layers: number of blocks.
        heads: of the attention; each is width / heads wide.
        kv_heads: keys and values are computed for so many heads, each of them shared by heads / kv_heads queries.
        width: of the vectors between the blocks.
        hidden: width within the feed-forward part; None: see `hidden_width`.
        checkpoint_activations: forget what the blocks compute and compute it again in the backward pass: less memory, a third more time.

    Attributes:
        flops_per_token: in training, for the share of the chip's peak.
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
        self.flops_per_token = flops_per_token(vocabulary, length, layers, heads, kv_heads, width, hidden)
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
        """Logits [b, t, vocabulary] of the tokens after each of `tokens` (integers [b, t]).

        Args:
            documents: number of the document that each token belongs to, integers [b, t]: a token sees those of its own document only.
                None: each row is one document, and attention takes the fast kernel for that.
        """
        x = self.embedding(tokens)
        # RoPE makes attention a function of distances, so positions need not begin anew with each document
        rotation = rotations(tokens.shape[1], self.head_width, x.device)
        visible = None if documents is None else own_past(documents)
        for block in self.blocks:
            if self.checkpoint_activations and torch.is_grad_enabled():
                x = checkpoint(block, x, rotation, visible, use_reentrant=False)
            else:
                x = block(x, rotation, visible)
        return self.head(self.norm(x))

    def _initialise(self, layers: int) -> None:
        """Normal, as in GPT-2: what is added to x is smaller, or x would grow with the number of blocks."""
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                added = name.endswith(("attention.output.weight", "feed_forward.down.weight"))
                nn.init.normal_(parameter, std=DEVIATION / math.sqrt(2 * layers) if added else DEVIATION)


class Block(nn.Module):
    """Attention, then a feed-forward part; each adds to what it sees."""

    def __init__(self, heads: int, kv_heads: int, width: int, hidden: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(width, EPSILON)
        self.attention = Attention(heads, kv_heads, width)
        self.feed_forward_norm = nn.RMSNorm(width, EPSILON)
        self.feed_forward = FeedForward(width, hidden)

    def forward(self, x: Tensor, rotation: Rotation, visible: Tensor | None) -> Tensor:
        """[b, t, width] to the same shape; `visible` as of `own_past`."""
        x = x + self.attention(self.attention_norm(x), rotation, visible)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Attention(nn.Module):
    """Each token takes a mean of earlier ones' values, weighed by how well its query suits their keys, in several heads."""

    def __init__(self, heads: int, kv_heads: int, width: int) -> None:
        super().__init__()
        self.head_width = width // heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, kv_heads * self.head_width, bias=False)
        self.value = nn.Linear(width, kv_heads * self.head_width, bias=False)
        self.output = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, rotation: Rotation, visible: Tensor | None) -> Tensor:
        """[b, t, width] to the same shape."""
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
    """SwiGLU: a gate that opens, for each hidden number, as far as the token needs it."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[b, t, width] to the same shape."""
        return self.down(functional.silu(self.gate(x)) * self.up(x))


def rotations(length: int, head_width: int, device: torch.device) -> Rotation:
    """By how much each pair of numbers of a query or key turns at each position."""
    pairs = torch.arange(0, head_width, 2, dtype=torch.float32, device=device) / head_width
    positions = torch.arange(length, dtype=torch.float32, device=device)
    angles = torch.outer(positions, THETA**-pairs)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Turn the pairs of x [b, heads, t, head width]; number i of a head makes a pair with number i + head width / 2."""
    cosine, sine = rotation
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1).type_as(x)


def own_past(documents: Tensor) -> Tensor:
    """What each token may see, bool [b, 1, t, t]: itself and what comes before it in its document."""
    same = documents[:, :, None] == documents[:, None, :]
    return same.tril()[:, None]
