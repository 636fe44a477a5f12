"""One step: its loss, accumulated gradients, and the sums behind the metrics."""

import numpy as np
import pytest

ROWS = 12


@pytest.fixture
def batch() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    images = random.normal(size=(ROWS, 8, 8, 1)).astype(np.float32)
    return images, random.integers(0, 10, ROWS), np.ones(ROWS, np.float32)


def tensors(images: np.ndarray, labels: np.ndarray, weights: np.ndarray):
    """A batch as the loop gives it."""
    import tensorflow as tf

    return (tf.constant(images), tf.constant(labels)), tf.constant(weights)


@pytest.fixture
def make_module():
    """A small network that always begins with the same weights."""

    def make(accumulate: int):
        import keras

        from src.models.keras.mlp import mlp
        from src.tasks.keras.classification import Classification
        from train_anywhere.training.keras.module import TaskModule
        from train_anywhere.training.keras.strategies.base import Strategy

        keras.utils.set_random_seed(0)
        network = mlp((8, 8, 1), 10, hidden=[256, 128], dropout=0.0)
        network.compile("sgd", jit_compile=False)
        return TaskModule(network, Classification(), Strategy(), accumulate)

    return make


def softmax_loss(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Cross-entropy of each row in float64."""
    logits = logits.astype(np.float64)
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(labels)), labels]


def test_accumulated_batches_give_the_gradient_of_the_big_batch(make_module, batch) -> None:
    big = make_module(1).compute_gradients(tensors(*batch))
    stacked = [part.reshape(3, ROWS // 3, *part.shape[1:]) for part in batch]
    for one, other in zip(big, make_module(3).accumulate_gradients(tensors(*stacked)), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_padding_changes_no_gradient(make_module, batch) -> None:
    """Eight real rows, then the same padded by repeated rows of weight 0 to twelve."""
    images, labels, weights = (part[:8] for part in batch)
    real = make_module(1).compute_gradients(tensors(images, labels, weights))
    padded = [np.concatenate([part, part[:4]]) for part in (images, labels)]
    weight = np.array([ROWS / 8] * 8 + [0] * 4, np.float32)
    for one, other in zip(real, make_module(1).compute_gradients(tensors(*padded, weight)), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_sums_count_real_rows_once(make_module, batch) -> None:
    images, labels, weights = batch
    weights = np.where(np.arange(ROWS) < 7, ROWS / 7, 0).astype(np.float32)
    module = make_module(1)
    module.test_step(tensors(images, labels, weights))
    logits = module.model(images).numpy()
    loss, right, samples = module.take()
    assert samples == 7
    assert right == (logits.argmax(axis=1) == labels)[:7].sum()
    assert loss == pytest.approx(softmax_loss(logits, labels)[:7].sum(), rel=1e-6)
    assert module.take() == [0, 0, 0]


def test_what_layers_add_to_the_loss_is_trained(make_module, batch) -> None:
    """Without it, a regularizer would be silently left out."""
    import keras

    plain, regular = make_module(1), make_module(1)
    (kernel,) = (v for v in regular.model.layers[-1].trainable_variables if v.name == "kernel")
    kernel.regularizer = keras.regularizers.L2(0.1)
    gradients = [module.compute_gradients(tensors(*batch))[-2] for module in (plain, regular)]
    np.testing.assert_allclose(gradients[1] - gradients[0], 0.2 * kernel.numpy(), atol=1e-6)


def test_a_float16_network_answers_in_float32(make_config) -> None:
    from train_anywhere.training.keras.native import dtype_policy
    from train_anywhere.training.plan import build_network

    facts = {"shape": (8, 8, 1), "outputs": 10}
    for name in ("mlp", "cnn", "resnet18"):
        with dtype_policy("mixed_float16"):
            model = build_network(make_config("framework=keras", f"model={name}"), facts)
        assert model.output.dtype == "float32"
        assert model.layers[1 if name == "mlp" else 2].compute_dtype == "float16"
        assert all(v.dtype == "float32" for v in model.trainable_variables)
    plain = build_network(make_config("framework=keras", "model=mlp"), facts)
    assert plain.layers[-2].compute_dtype == "float32"
