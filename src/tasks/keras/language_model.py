"""Language modelling: predict each token from those before it. Needs only Keras."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops


class Perplexity(keras.metrics.Mean):
    """The exponential of a mean."""

    def result(self) -> Any:
        """Return the perplexity of all batches so far."""
        return ops.exp(super().result())


class LanguageModel(keras.Model):
    """A network for {"tokens", "documents": int32 [b, t + 1], "bytes": float32 [b]}.

    Documents are numbered within a row, and -1 is padding. A token is a target if the one before it is of the same document.

    Args:
        network: maps {"tokens": [b, t], "documents": [b, t]} to the logits [b, t, vocabulary] of the next tokens.
        optimizer: a Keras optimizer or its name; `train.py` passes the one of `optimizer=` with its schedule.
    """

    def __init__(self, network: keras.Model, optimizer: Any = "adamw") -> None:
        super().__init__(name="language_model")
        self.network = network
        # Keras' own metric of this name weights batches by rows, this one by targets
        self.nats = keras.metrics.Mean(name="loss")
        self.perplexity = Perplexity(name="perplexity")
        self.bits_per_byte = keras.metrics.Mean(name="bits_per_byte")
        self.compile(optimizer=optimizer)

    def call(self, batch: dict[str, Any], training: bool | None = None) -> Any:
        """Return the logits of all tokens but the first."""
        inputs = {"tokens": batch["tokens"][:, :-1], "documents": batch["documents"][:, :-1]}
        return self.network(inputs, training=training)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        """Return the cross-entropy in nats, and count it: per target, and in bits per byte of UTF-8.

        The loss is a sum over targets divided by all places of the batch, so the mean over ranks is that of the whole batch.
        """
        documents = x["documents"]
        counts = (documents[:, 1:] == documents[:, :-1]) & (documents[:, 1:] >= 0)
        counts = ops.cast(counts, "float32")
        logits = ops.cast(y_pred, "float32")
        nats = counts * ops.sparse_categorical_crossentropy(x["tokens"][:, 1:], logits, from_logits=True)
        self.nats.update_state(nats, counts)
        self.perplexity.update_state(nats, counts)
        bits = ops.sum(nats, axis=1) / math.log(2)
        self.bits_per_byte.update_state(ops.divide_no_nan(bits, x["bytes"]), x["bytes"])
        return ops.mean(nats) + sum(self.losses)

    def generate(self, prompt: Sequence[int], count: int, temperature: float, seed: int) -> list[int]:
        """Return the prompt, of at least one token, and `count` sampled tokens.

        Logits are divided by `temperature`; 0 takes the most probable token.
        """
        random, tokens = np.random.default_rng(seed), list(prompt)
        length = self.network.length
        for _ in range(count):
            # always the same shape, for one compiled graph; no token sees the zeros after it
            row = np.zeros((1, length), np.int32)
            seen = tokens[-length:]
            row[0, : len(seen)] = seen
            logits = self.network.predict_on_batch({"tokens": row, "documents": np.zeros_like(row)})
            logits = np.asarray(logits[0, len(seen) - 1], np.float64)
            if temperature > 0:  # the largest of logits + Gumbel noise is a sample of their softmax
                logits = logits / temperature + random.gumbel(size=logits.shape)
            tokens.append(int(logits.argmax()))
        return tokens
