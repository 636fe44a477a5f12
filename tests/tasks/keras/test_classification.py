"""Loss and sums of a batch."""

import numpy as np


def test_padding_counts_nowhere() -> None:
    import tensorflow as tf

    from src.tasks.keras.classification import Classification

    logits = tf.constant([[2.0, 0.0], [0.0, 2.0], [0.0, 2.0], [5.0, 0.0]])
    labels, weights = tf.constant([0, 1, 0, 0], tf.int64), tf.constant([4 / 3, 4 / 3, 4 / 3, 0.0])
    task = Classification()
    losses, sums = task.step(lambda images, training: images, (logits, labels), weights, training=False)
    expected = np.log(1 + np.exp([-2.0, -2.0, 2.0, -5.0]))
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    np.testing.assert_allclose(sums, [expected[:3].sum(), 2, 3], rtol=1e-6)
    assert task.report("val", sums.numpy())["val/acc"] == 2 / 3
