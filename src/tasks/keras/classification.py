"""Image classification with TensorFlow."""

import tensorflow as tf


def cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Cross-entropy of each row, float32 [b]; logits [b, classes], labels are class numbers int64 [b]."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)


def sums(losses: tf.Tensor, logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """The batch's sums by `src.tasks.SUMS`, float64 [3]; rows of weight 0 are padding and count nowhere."""
    real = tf.cast(weights > 0, tf.float64)
    right = tf.cast(tf.argmax(logits, axis=-1) == labels, tf.float64)
    loss = tf.reduce_sum(real * tf.cast(losses, tf.float64))
    return tf.stack([loss, tf.reduce_sum(real * right), tf.reduce_sum(real)])
