"""Language modelling in TensorFlow."""

from collections.abc import Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from src.tasks import language_model


class LanguageModel(language_model.LanguageModel):
    """Batches are {"tokens": int32 [b, t + 1], "documents": int32 [b, t + 1], "bytes": float32 [b]}; see `split_targets`."""

    def prepare(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return tokens, documents and targets; runs where batches are loaded."""
        return language_model.split_targets(batch)

    def step(
        self, network: keras.Model, batch: dict[str, tf.Tensor], weight: tf.Tensor, training: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the mean cross-entropy of each row's targets, float32 [b], and the sums of the batch, float64 [3].

        The network maps {"tokens": [b, t], "documents": [b, t]} to logits [b, t, vocabulary].
        `weight` float32 [b] is proportional to a row's number of targets, and 0 for padding.
        """
        targets = batch["targets"]
        inputs = {"tokens": batch["tokens"], "documents": batch["documents"]}
        logits = tf.cast(network(inputs, training=training), tf.float32)
        counts = targets != language_model.IGNORED
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.where(counts, targets, 0), logits)
        nats = tf.reduce_sum(tf.where(counts, losses, 0.0), axis=1)
        counted = tf.reduce_sum(tf.cast(counts, tf.float32), axis=1)
        real = tf.cast(weight > 0, tf.float64)  # rows of weight 0 are padding
        columns = [nats, counted, batch["bytes"]]
        sums = tf.stack([tf.reduce_sum(real * tf.cast(c, tf.float64)) for c in columns])
        return nats / tf.maximum(counted, 1.0), sums

    def generate(
        self, network: keras.Model, prompt: Sequence[int], count: int, temperature: float, seed: int
    ) -> list[int]:
        """Return the prompt, of at least one token, and `count` sampled tokens; see `sample_tokens`."""
        run = tf.function(lambda inputs: network(inputs, training=False))

        def predict(tokens: list[int]) -> np.ndarray:
            seen = tokens[-network.length :]
            # always the same shape, so TensorFlow traces one graph; the zeros come later, and no token sees later ones
            row = np.zeros((1, network.length), np.int32)
            row[0, : len(seen)] = seen
            logits = run({"tokens": tf.constant(row), "documents": tf.zeros(row.shape, tf.int32)})
            return np.asarray(tf.cast(logits[0, len(seen) - 1], tf.float32))

        return language_model.sample_tokens(predict, prompt, count, temperature, seed)
