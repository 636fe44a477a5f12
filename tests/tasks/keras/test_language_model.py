"""Loss and sums of a batch, the mean over tokens, and generation."""

from typing import Any

import numpy as np

from src.tasks.language_model import IGNORED
from tests.tasks.sentences import VOCABULARY, open_sentences
from train_anywhere.data.order.assignment import BatchOrder

DATA = open_sentences().train


def network() -> Any:
    import keras

    from src.models.keras.gpt import gpt

    keras.utils.set_random_seed(0)
    return gpt(VOCABULARY, 12, 1, 2, 1, 16, None, False)


def test_padding_counts_nowhere() -> None:
    """Return a row whose second target starts another document, and one of weight 0."""
    import tensorflow as tf

    from src.tasks.keras.language_model import LanguageModel

    logits = tf.constant([[[1.0, 0.0], [0.0, 3.0]], [[2.0, 0.0], [2.0, 0.0]]])
    zeros = tf.zeros((2, 2), tf.int32)
    targets = tf.constant([[0, IGNORED], [1, 1]])
    batch = {"tokens": zeros, "documents": zeros, "targets": targets, "bytes": tf.constant([4.0, 8.0])}
    losses, sums = LanguageModel().step(
        lambda inputs, training: logits, batch, tf.constant([2.0, 0.0]), training=True
    )
    nats = np.log(1 + np.exp([-1.0, 2.0]))
    np.testing.assert_allclose(losses, [nats[0], nats[1]], rtol=1e-5)
    np.testing.assert_allclose(sums, [nats[0], 1, 4], rtol=1e-5)


def test_the_loss_of_the_ranks_is_the_mean_over_tokens() -> None:
    """The gradient of two ranks with two batches each is that of the mean over all targets."""
    import tensorflow as tf

    from src.tasks.keras.language_model import LanguageModel

    task, model, shares = LanguageModel(), network(), []
    nats, tokens = 0.0, 0.0
    for rank in range(2):
        order = BatchOrder(8, 3, rank, 2, train=True, accumulate=2)
        for number in range(2):
            indices, weight = order.rows(len(DATA), 0, number, DATA.sizes)
            batch = {
                name: tf.constant(array) for name, array in task.prepare(DATA.read(indices, 0, True)).items()
            }
            losses, sums = task.step(model, batch, tf.constant(weight), training=True)
            shares.append(float(tf.reduce_mean(losses * weight)))
            nats, tokens = nats + float(sums[0]), tokens + float(sums[1])
    np.testing.assert_allclose(np.mean(shares), nats / tokens, rtol=1e-5)


def test_generated_tokens_are_those_of_the_network() -> None:
    """Each new token is the most probable one after the whole context."""
    from src.tasks.keras.language_model import LanguageModel

    model, prompt = network(), [3, 4, 5]
    made = LanguageModel().generate(model, prompt, 12, 0.0, 0)
    assert made[:3] == prompt and len(made) == 15
    for end in range(3, 15):
        seen = np.array([made[max(0, end - 12) : end]], np.int32)
        logits = np.asarray(model({"tokens": seen, "documents": 0 * seen}))[0, -1]
        assert logits[made[end]] >= logits.max() - 1e-5
    drawn = [LanguageModel().generate(model, prompt, 8, 5.0, seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
