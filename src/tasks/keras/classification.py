"""Classification with TensorFlow: one label for each row."""

import keras
import tensorflow as tf

from src.tasks import classification


class Classification(classification.Classification):
    """Batches are (images float32 [b, ...], labels int64 [b]); the network gives logits [b, classes]."""

    def step(
        self, network: keras.Model, batch: tuple[tf.Tensor, tf.Tensor], weight: tf.Tensor, training: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The cross-entropy of each row, float32 [b], and the sums of the batch, float64 [len(self.sums)]."""
        images, labels = batch
        logits = tf.cast(network(images, training=training), tf.float32)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        real = tf.cast(weight > 0, tf.float64)  # others are padding, and count nowhere
        right = tf.cast(tf.argmax(logits, axis=-1) == tf.cast(labels, tf.int64), tf.float64)
        loss = tf.reduce_sum(real * tf.cast(losses, tf.float64))
        return losses, tf.stack([loss, tf.reduce_sum(real * right), tf.reduce_sum(real)])
