"""Language modelling: predict each token from those before it in its document."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from train_anywhere import tasks as base
from train_anywhere.errors import DataError

IGNORED = -100
"""The target of a position that does not count: the number that the frameworks use for it."""


class LanguageModel(base.Task):
    """Language modelling on rows of tokens of one length; each predicted token has the same weight."""

    sums = ("loss", "tokens", "bytes")
    metrics = {"loss": "min", "perplexity": "min", "bits_per_byte": "min"}  # noqa: RUF012
    headline = "loss"
    unit = "tokens"

    def measure(self, sums: Sequence[float]) -> dict[str, float]:
        """Return the mean cross-entropy per token in nats, its exponential, and the bits per byte of UTF-8.

        Only bits per byte can be compared between vocabularies.
        """
        nats, tokens, size = sums
        loss = nats / tokens
        bits = nats / math.log(2) / size if size else math.inf
        return {"loss": loss, "perplexity": math.exp(min(loss, 700.0)), "bits_per_byte": bits}


def split_targets(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Split rows into tokens and their targets, the tokens that follow them.

    Args:
        batch: "tokens" and "documents", integers [b, t + 1]; documents are numbered within a row, and -1 is padding; "bytes" [b].

    Returns:
        "tokens", "documents" and "targets" [b, t], and "bytes". A target is `IGNORED` if it starts another document or is padding.

    Raises:
        DataError: the batch has other entries.
    """
    if not isinstance(batch, Mapping) or not {"tokens", "documents", "bytes"} <= batch.keys():
        raise DataError(
            "task=language_model needs rows of tokens, documents and bytes, as data=text has them; use data=text, or another task."
        )
    tokens, documents = batch["tokens"], batch["documents"]
    counts = (documents[:, 1:] == documents[:, :-1]) & (documents[:, 1:] >= 0)
    return {
        "tokens": tokens[:, :-1],
        "documents": documents[:, :-1],
        "targets": np.where(counts, tokens[:, 1:], IGNORED),
        "bytes": batch["bytes"],
    }


def sample_tokens(
    predict: Callable[[list[int]], np.ndarray],
    prompt: Sequence[int],
    count: int,
    temperature: float,
    seed: int,
) -> list[int]:
    """Return the prompt and `count` sampled tokens.

    Args:
        predict: a function from tokens to the logits [vocabulary] of the next one.
        prompt: the first tokens.
        count: number of tokens to sample.
        temperature: logits are divided by it; 0 takes the most probable token.
        seed: seed of the samples, which are the same in both frameworks.
    """
    random, tokens = np.random.Generator(np.random.PCG64(seed)), list(prompt)
    for _ in range(count):
        logits = predict(tokens).astype(np.float64)
        if temperature > 0:  # the largest of logits + Gumbel noise is a sample of their softmax
            logits = logits / temperature + random.gumbel(size=logits.shape)
        tokens.append(int(logits.argmax()))
    return tokens
