"""Language modelling: each token is predicted from those before it in its document."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from train_anywhere import tasks as base
from train_anywhere.errors import DataError

IGNORED = -100
"""What stands for a target that does not count: the number that frameworks use for it."""


class LanguageModel(base.Task):
    """Rows are pieces of text of one length; every predicted token weighs the same, however many of them a row has."""

    sums = ("loss", "tokens", "bytes")
    metrics = {"loss": "min", "perplexity": "min", "bits_per_byte": "min"}  # noqa: RUF012
    headline = "loss"
    unit = "tokens"

    def measure(self, sums: Sequence[float]) -> dict[str, float]:
        """Mean cross-entropy of a token in nats, its exponential, and the same information in bits per byte of UTF-8.

        Bits per byte can be compared between vocabularies; the other two can't.
        """
        nats, tokens, size = sums
        loss = nats / tokens
        bits = nats / math.log(2) / size if size else math.inf
        return {"loss": loss, "perplexity": math.exp(min(loss, 700.0)), "bits_per_byte": bits}


def shifted(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Each token beside the one that follows it.

    Args:
        batch: "tokens" and "documents", integers [b, t + 1], where documents are numbered within a row and -1 is padding; "bytes" [b].

    Returns:
        "tokens", "documents" and "targets" [b, t], and "bytes". A target is `IGNORED` if it begins another document, or is padding.

    Raises:
        DataError: the rows are not such.
    """
    if not isinstance(batch, Mapping) or not {"tokens", "documents", "bytes"} <= batch.keys():
        raise DataError(
            "task=language_model needs rows of tokens, documents and bytes, as data=text gives them; use data=text, or another task."
        )
    tokens, documents = batch["tokens"], batch["documents"]
    counts = (documents[:, 1:] == documents[:, :-1]) & (documents[:, 1:] >= 0)
    return {
        "tokens": tokens[:, :-1],
        "documents": documents[:, :-1],
        "targets": np.where(counts, tokens[:, 1:], IGNORED),
        "bytes": batch["bytes"],
    }


def continued(
    predict: Callable[[list[int]], np.ndarray],
    prompt: Sequence[int],
    count: int,
    temperature: float,
    seed: int,
) -> list[int]:
    """The prompt's tokens and `count` more, drawn one by one.

    Args:
        predict: from tokens to the logits [vocabulary] of the next one.
        temperature: logits are divided by it; 0 takes the most probable token.
        seed: of the draws, which are the same in both frameworks.
    """
    random, tokens = np.random.Generator(np.random.PCG64(seed)), list(prompt)
    for _ in range(count):
        logits = predict(tokens).astype(np.float64)
        if temperature > 0:  # the largest of logits + Gumbel noise is a draw from their softmax
            logits = logits / temperature + random.gumbel(size=logits.shape)
        tokens.append(int(logits.argmax()))
    return tokens
