"""One step: the loss that the gradients are of, their accumulation, and the sums behind the metrics."""

import numpy as np
import pytest

ROWS = 12


@pytest.fixture
def batch() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    images = random.normal(size=(ROWS, 8, 8, 1)).astype(np.float32)
    return images, random.integers(0, 10, ROWS), np.ones(ROWS, np.float32)


@pytest.fixture
def make_classifier(make_config):
    """A small network that always begins with the same weights."""

    def make(accumulate: int):
        import keras

        from src.models.keras import build_model
        from src.training.keras.module import Classifier
        from src.training.keras.strategies.base import Strategy

        keras.utils.set_random_seed(0)
        model = build_model(make_config("model=mlp", "model.dropout=0").model, (8, 8, 1), 10)
        classifier = Classifier(model, Strategy(), accumulate)
        classifier.compile("sgd", jit_compile=False)
        return classifier

    return make


def softmax_loss(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Cross-entropy of each row in float64."""
    logits = logits.astype(np.float64)
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(labels)), labels]


def test_accumulated_batches_give_the_gradient_of_the_big_batch(make_classifier, batch) -> None:
    import tensorflow as tf

    big = make_classifier(1).gradients(*map(tf.constant, batch))
    stacked = [tf.constant(part.reshape(3, ROWS // 3, *part.shape[1:])) for part in batch]
    for one, other in zip(big, make_classifier(3).accumulated(*stacked), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_padding_changes_no_gradient(make_classifier, batch) -> None:
    """Eight real rows, then the same padded by repeated rows of weight 0 to twelve."""
    import tensorflow as tf

    images, labels, weights = (part[:8] for part in batch)
    real = make_classifier(1).gradients(*map(tf.constant, (images, labels, weights)))
    padded = [np.concatenate([part, part[:4]]) for part in (images, labels)]
    weight = np.array([ROWS / 8] * 8 + [0] * 4, np.float32)
    for one, other in zip(
        real, make_classifier(1).gradients(*map(tf.constant, (*padded, weight))), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_tally_counts_real_rows_once(make_classifier, batch) -> None:
    import tensorflow as tf

    images, labels, weights = batch
    weights = np.where(np.arange(ROWS) < 7, ROWS / 7, 0).astype(np.float32)
    classifier = make_classifier(1)
    classifier.test_step(tuple(map(tf.constant, (images, labels, weights))))
    logits = classifier(images).numpy()
    loss, right, samples = classifier.tally.take()
    assert samples == 7
    assert right == (logits.argmax(axis=1) == labels)[:7].sum()
    assert loss == pytest.approx(softmax_loss(logits, labels)[:7].sum(), rel=1e-6)
    assert classifier.tally.take() == [0, 0, 0]


def test_a_float16_network_answers_in_float32(make_config) -> None:
    from src.models.keras import build_model
    from src.training.keras.run import dtype_policy

    for name in ("mlp", "cnn", "resnet18"):
        with dtype_policy("mixed_float16"):
            model = build_model(make_config(f"model={name}").model, (8, 8, 1), 10)
        assert model.output.dtype == "float32"
        assert model.layers[1 if name == "mlp" else 2].compute_dtype == "float16"
        assert all(v.dtype == "float32" for v in model.trainable_variables)
    assert build_model(make_config("model=mlp").model, (8, 8, 1), 10).layers[-2].compute_dtype == "float32"
