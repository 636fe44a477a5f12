"""Classification in TensorFlow."""

import keras
import tensorflow as tf

from src.tasks import classification


class Classification(classification.Classification):
    """Batches are (images, labels): images float32 [b, ...], labels are class numbers, whole numbers [b]."""

    def step(
        self, network: keras.Model, batch: tuple[tf.Tensor, tf.Tensor], weight: tf.Tensor, training: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the cross-entropy of each row, float32 [b], and the sums of the batch, float64 [3].

        The network maps images float32 [b, ...] to logits [b, classes]. Rows with a `weight` (float32 [b]) of 0 are padding.
        """
        images, labels = batch[0], tf.cast(batch[1], tf.int64)
        logits = tf.cast(network(images, training=training), tf.float32)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        real = tf.cast(weight > 0, tf.float64)  # rows of weight 0 are padding
        right = tf.cast(tf.argmax(logits, axis=-1) == labels, tf.float64)
        loss = tf.reduce_sum(real * tf.cast(losses, tf.float64))
        return losses, tf.stack([loss, tf.reduce_sum(real * right), tf.reduce_sum(real)])
