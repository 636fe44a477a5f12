"""Decoder-only language model: RoPE, RMSNorm, SwiGLU, grouped-query attention.

x = embedding(tokens)
in each block:  x = x + attention(norm(x));  x = x + feed_forward(norm(x))
logits = embedding(norm(x), reverse=True), with the same weights
"""

import math
from typing import Any

import keras
from keras import layers, ops
from keras.initializers import RandomNormal

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


def gpt(
    vocabulary: Vocabulary,
    length: Length,
    layers: Layers,
    heads: Heads,
    kv_heads: Heads,
    width: Width,
    hidden: Hidden | None,
    checkpoint_activations: bool,
) -> keras.Model:
    """Return a network from tokens to the logits of the next tokens, [b, t, vocabulary].

    Its input is {"tokens": int32 [b, t], "documents": int32 [b, t]}; `documents` is the number of each token's document. A token sees only
    tokens of the same document.

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
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    documents = keras.Input((None,), dtype="int32", name="documents")
    embedding = keras.layers.ReversibleEmbedding(
        vocabulary, width, embeddings_initializer=RandomNormal(0, DEVIATION), name="embedding"
    )
    x = embedding(tokens)
    visible = CausalMask(name="causal_mask")(documents)
    for number in range(layers):
        block = Block(
            heads,
            kv_heads,
            width,
            hidden or hidden_width(width),
            # smaller for outputs that are added to x, or x would grow with the number of blocks
            DEVIATION / math.sqrt(2 * layers),
            checkpoint_activations,
            name=f"block_{number}",
        )
        x = block(x, visible)
    x = norm("norm")(x)
    network = keras.Model({"tokens": tokens, "documents": documents}, embedding(x, reverse=True), name="gpt")
    network.length = length
    return network


@keras.saving.register_keras_serializable("gpt", name="OwnPast")  # the name in exported models
class CausalMask(layers.Layer):
    """The attention mask: a token sees itself and the earlier tokens of its document."""

    def call(self, documents: Any) -> Any:
        """Map documents int32 [b, t] to a mask, bool [b, 1, t, t]."""
        positions = ops.arange(ops.shape(documents)[1])
        same = documents[:, :, None] == documents[:, None, :]
        return (same & (positions[:, None] >= positions[None, :]))[:, None]


@keras.saving.register_keras_serializable("gpt")
class Block(layers.Layer):
    """A transformer block: attention, then feed-forward layers, each added to its input.

    Args:
        deviation: standard deviation of the initial weights of the layers whose outputs are added.
    """

    def __init__(
        self,
        heads: int,
        kv_heads: int,
        width: int,
        hidden: int,
        deviation: float,
        checkpoint_activations: bool,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.settings = {
            "heads": heads,
            "kv_heads": kv_heads,
            "width": width,
            "hidden": hidden,
            "deviation": deviation,
            "checkpoint_activations": checkpoint_activations,
        }
        self.width, self.hidden, self.head_width = width, hidden, width // heads
        self.attention_norm = norm("attention_norm")
        self.query = linear("query", width)
        self.key = linear("key", kv_heads * self.head_width)
        self.value = linear("value", kv_heads * self.head_width)
        self.output_ = linear("output", width, deviation)
        self.feed_forward_norm = norm("feed_forward_norm")
        self.gate, self.up = linear("gate", hidden), linear("up", hidden)
        self.down = linear("down", width, deviation)
        self.checkpoint_activations = checkpoint_activations

    def build(self, x_shape: Any, visible_shape: Any = None) -> None:
        """Create the weights, in the order of their use."""
        for layer in (self.attention_norm, self.query, self.key, self.value, self.output_):
            layer.build((None, None, self.width))
        for layer in (self.feed_forward_norm, self.gate, self.up):
            layer.build((None, None, self.width))
        self.down.build((None, None, self.hidden))

    def call(self, x: Any, visible: Any) -> Any:
        """Map [b, t, width] to the same shape, with `visible` from `CausalMask`."""
        if self.checkpoint_activations:  # the mask has no gradient, so it is not an argument of remat
            return keras.remat(lambda x: self.forward(x, visible))(x)
        return self.forward(x, visible)

    def forward(self, x: Any, visible: Any) -> Any:
        """Compute the block, without checkpointing."""
        x = x + self.attention(self.attention_norm(x), visible)
        return x + self.feed_forward(self.feed_forward_norm(x))

    def attention(self, x: Any, visible: Any) -> Any:
        """Compute causal self-attention with grouped queries."""
        length = ops.shape(x)[1]
        query, key, value = (
            ops.reshape(layer(x), (-1, length, layer.units // self.head_width, self.head_width))
            for layer in (self.query, self.key, self.value)
        )
        shared = query.shape[2] // key.shape[2]
        key, value = ops.repeat(rotate(key), shared, axis=2), ops.repeat(value, shared, axis=2)
        seen = ops.dot_product_attention(rotate(query), key, value, mask=visible)
        return self.output_(ops.reshape(seen, (-1, length, self.width)))

    def feed_forward(self, x: Any) -> Any:
        """Compute SwiGLU, https://arxiv.org/abs/2002.05202."""
        return self.down(ops.silu(self.gate(x)) * self.up(x))

    def compute_output_shape(self, x_shape: Any, visible_shape: Any = None) -> Any:
        """Return the shape of x."""
        return x_shape

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor, for a saved model."""
        return {**super().get_config(), **self.settings}


def linear(name: str, width: int, deviation: float = DEVIATION) -> keras.layers.Dense:
    """Return a dense layer without bias."""
    return layers.Dense(width, use_bias=False, kernel_initializer=RandomNormal(0, deviation), name=name)


def norm(name: str) -> keras.layers.RMSNormalization:
    """Return a layer that scales vectors to mean square 1, times learned weights."""
    return layers.RMSNormalization(epsilon=EPSILON, name=name)


def rotate(x: Any) -> Any:
    """Apply RoPE to x [b, t, heads, head width]: rotate pairs of numbers by position.

    Number i of a head pairs with number i + head width / 2. Attention then depends only on distances, so positions need not restart with
    each document.
    """
    width = x.shape[-1]
    pairs = ops.arange(0, width, 2, dtype="float32") / width
    positions = ops.arange(ops.shape(x)[1], dtype="float32")
    angles = positions[:, None] * THETA**-pairs
    cosine, sine = ops.cos(angles)[:, None], ops.sin(angles)[:, None]
    first, second = ops.split(ops.cast(x, "float32"), 2, axis=-1)
    turned = ops.concatenate((first * cosine - second * sine, second * cosine + first * sine), axis=-1)
    return ops.cast(turned, x.dtype)
