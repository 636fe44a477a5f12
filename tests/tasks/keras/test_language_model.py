"""Targets that count, the mean over tokens on any number of ranks, and generation."""

import math
from typing import Any

import numpy as np
import pytest

from tests.tasks.sentences import VOCABULARY, open_sentences

DATA = open_sentences().train


def network() -> Any:
    import keras

    from src.models.keras.gpt import gpt

    keras.utils.set_random_seed(0)
    return gpt(VOCABULARY, 12, 1, 2, 1, 16, None, False)


def tensors(rows: list[int]) -> dict[str, Any]:
    import tensorflow as tf

    return {name: tf.constant(array) for name, array in DATA.read(np.array(rows), 0, True).items()}


def test_a_target_is_the_next_token_of_the_same_document() -> None:
    """The first row has two documents, the second one is padded."""
    import tensorflow as tf

    from src.tasks.keras.language_model import LanguageModel

    logits = tf.constant([[[1.0, 0.0], [0.0, 3.0]], [[2.0, 0.0], [2.0, 0.0]]])
    batch = {
        "tokens": tf.constant([[0, 0, 1], [0, 0, 0]]),
        "documents": tf.constant([[0, 0, 1], [0, 0, -1]]),
        "bytes": tf.constant([4.0, 2.0]),
    }
    model = LanguageModel(network())
    loss = float(model.compute_loss(batch, y_pred=logits))
    nats = np.log(1 + np.exp([-1.0, -2.0]))
    assert loss == pytest.approx(nats.sum() / 4)
    found = {
        metric.name: float(metric.result()) for metric in (model.nats, model.perplexity, model.bits_per_byte)
    }
    bits = nats.sum() / math.log(2) / 6
    assert found == pytest.approx(
        {"loss": nats.mean(), "perplexity": math.exp(nats.mean()), "bits_per_byte": bits}
    )


def test_the_loss_of_two_ranks_is_that_of_one() -> None:
    """Rows have different numbers of targets, and each target has the same weight."""
    from src.tasks.keras.language_model import LanguageModel

    model, rows = LanguageModel(network()), [*range(16)]
    parts = [tensors(part) for part in (rows, rows[:8], rows[8:])]
    whole, *shares = [float(model.compute_loss(part, y_pred=model(part))) for part in parts]
    assert np.mean(shares) == pytest.approx(whole, rel=1e-5)


def test_metrics_are_those_of_all_targets() -> None:
    """Also over batches of different sizes."""
    import tensorflow as tf

    from src.tasks.keras.language_model import LanguageModel

    model, data = LanguageModel(network()), tensors([*range(10)])
    one, several = (
        model.evaluate(tf.data.Dataset.from_tensor_slices(data).batch(size), verbose=0, return_dict=True)
        for size in (10, 4)
    )
    assert several == pytest.approx(one, rel=1e-5) and {*one} == {"loss", "perplexity", "bits_per_byte"}
    assert one["perplexity"] == pytest.approx(math.exp(one["loss"]), rel=1e-5)


def test_what_layers_add_to_the_loss_is_trained() -> None:
    import keras

    from src.tasks.keras.language_model import LanguageModel

    plain, regular = LanguageModel(network()), LanguageModel(network())
    kernel = regular.trainable_variables[0]
    kernel.regularizer = keras.regularizers.L2(0.5)
    batch = tensors([0, 1])
    losses = [float(model.compute_loss(batch, y_pred=plain(batch))) for model in (plain, regular)]
    assert losses[1] - losses[0] == pytest.approx(0.5 * (kernel.numpy() ** 2).sum(), rel=1e-3)


def test_generated_tokens_are_those_of_the_network() -> None:
    """Each new token is the most probable one after the whole context."""
    from src.tasks.keras.language_model import LanguageModel

    task, prompt = LanguageModel(network()), [3, 4, 5]
    made = task.generate(prompt, 12, 0.0, 0)
    assert made[:3] == prompt and len(made) == 15
    for end in range(3, 15):
        seen = np.array([made[max(0, end - 12) : end]], np.int32)
        logits = np.asarray(task.network({"tokens": seen, "documents": 0 * seen}))[0, -1]
        assert logits[made[end]] >= logits.max() - 1e-5
    drawn = [task.generate(prompt, 8, 5.0, seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_draws_are_as_frequent_as_the_softmax_says() -> None:
    from src.tasks.keras.language_model import LanguageModel

    odds = np.log(np.array([0.7, 0.2, 0.1], np.float32))
    inner = network()
    inner.predict_on_batch = lambda batch: np.tile(odds, (1, 12, 1))
    drawn = LanguageModel(inner).generate([0], 4000, 1.0, 0)[1:]
    assert np.bincount(drawn) / 4000 == pytest.approx([0.7, 0.2, 0.1], abs=0.03)
