"""Language modelling with TensorFlow."""

from collections.abc import Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from src.tasks import language_model


class LanguageModel(language_model.LanguageModel):
    """Batches are {"tokens": int32 [b, t + 1], "documents": int32 [b, t + 1], "bytes": float32 [b]}, see `language_model.shifted`."""

    def prepare(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Tokens, their documents, and targets."""
        return language_model.shifted(batch)

    def step(
        self, network: keras.Model, batch: dict[str, tf.Tensor], weight: tf.Tensor, training: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean cross-entropy of each row's targets, float32 [b], and the sums of the batch, float64 [len(self.sums)].

        Args:
            network: {"tokens": [b, t], "documents": [b, t]} to logits [b, t, vocabulary].
            weight: of each row, by its number of targets, float32 [b].
        """
        targets = batch["targets"]
        inputs = {"tokens": batch["tokens"], "documents": batch["documents"]}
        logits = tf.cast(network(inputs, training=training), tf.float32)
        counts = targets != language_model.IGNORED
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.where(counts, targets, 0), logits)
        nats = tf.reduce_sum(tf.where(counts, losses, 0.0), axis=1)
        counted = tf.reduce_sum(tf.cast(counts, tf.float32), axis=1)
        real = tf.cast(weight > 0, tf.float64)  # others are padding, and count nowhere
        columns = [nats, counted, batch["bytes"]]
        sums = tf.stack([tf.reduce_sum(real * tf.cast(c, tf.float64)) for c in columns])
        return nats / tf.maximum(counted, 1.0), sums

    def generate(
        self, network: keras.Model, prompt: Sequence[int], count: int, temperature: float, seed: int
    ) -> list[int]:
        """The prompt, of at least one token, and `count` tokens more; see `language_model.continued`."""
        run = tf.function(lambda inputs: network(inputs, training=False))

        def predict(tokens: list[int]) -> np.ndarray:
            seen = tokens[-network.length :]
            row = np.zeros(
                (1, network.length), np.int32
            )  # one shape, one graph: no token sees what comes after it
            row[0, : len(seen)] = seen
            logits = run({"tokens": tf.constant(row), "documents": tf.zeros(row.shape, tf.int32)})
            return np.asarray(tf.cast(logits[0, len(seen) - 1], tf.float32))

        return language_model.continued(predict, prompt, count, temperature, seed)
