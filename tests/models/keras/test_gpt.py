"""`gpt` in Keras: the attention mask, activation checkpointing, and a saved model."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src.models.gpt import parameter_count


def small(checkpoint_activations: bool = False, kv_heads: int = 2) -> Any:
    import keras

    from src.models.keras.gpt import gpt

    keras.utils.set_random_seed(0)
    return gpt(50, 16, 2, 4, kv_heads, 32, None, checkpoint_activations)


def row(length: int = 10) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 50, (1, length)).astype(np.int32)


def logits(model: Any, tokens: np.ndarray, documents: np.ndarray | None = None) -> np.ndarray:
    documents = 0 * tokens if documents is None else documents
    return np.asarray(model({"tokens": tokens, "documents": documents}))


def test_no_token_sees_a_later_one_or_another_document() -> None:
    model, tokens = small(), row()
    later = np.where(np.arange(10) < 6, tokens, (tokens + 1) % 50)
    np.testing.assert_allclose(logits(model, tokens)[:, :6], logits(model, later)[:, :6], atol=1e-6)
    documents = np.array([[0, 0, 0, 1, 1, 1, 1, 2, 2, -1]], np.int32)
    packed = logits(model, tokens, documents)
    for first, last in ((0, 3), (3, 7), (7, 9)):
        np.testing.assert_allclose(packed[:, first:last], logits(model, tokens[:, first:last]), atol=1e-5)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_parameters_are_those_of_the_formula(kv_heads: int) -> None:
    from src.models.keras import count_parameters

    assert count_parameters(small(kv_heads=kv_heads)) == parameter_count(50, 2, 4, kv_heads, 32)


def test_computing_again_changes_no_gradient() -> None:
    """Recomputing gives the same gradients and traces a block twice."""
    import tensorflow as tf

    from src.models.keras.gpt import Block

    gradients, traced = [], []
    for again in (False, True):
        model, tokens = small(again), row(16)
        graph = tf.function(lambda model=model, tokens=tokens: gradient(model, tokens))
        gradients.append(graph())
        operations = graph.get_concrete_function().graph.as_graph_def()
        inner = [
            *operations.node,
            *(node for function in operations.library.function for node in function.node_def),
        ]
        traced.append(sum(node.op == "Softmax" for node in inner))
    assert traced[1] > traced[0]
    assert isinstance(model.get_layer("block_0"), Block)
    for one, other in zip(*gradients, strict=True):
        np.testing.assert_allclose(tf.convert_to_tensor(one), tf.convert_to_tensor(other), atol=1e-6)


def gradient(model: Any, tokens: np.ndarray) -> Any:
    import tensorflow as tf

    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model({"tokens": tokens, "documents": 0 * tokens}, training=True) ** 2)
    return tape.gradient(loss, model.trainable_variables)


def test_first_weights() -> None:
    model = small()
    widest = {v.path: float(np.std(v)) for v in model.trainable_variables}
    assert widest["block_1/query/kernel"] == pytest.approx(0.02, rel=0.1)
    assert widest["block_1/output/kernel"] == pytest.approx(0.01, rel=0.1)
    assert widest["block_1/down/kernel"] == pytest.approx(0.01, rel=0.1)
    assert widest["embedding/embeddings"] == pytest.approx(0.02, rel=0.1)


def test_a_saved_model_is_the_same(tmp_path: Path) -> None:
    import keras

    model, tokens = small(), row()
    model.save(tmp_path / "gpt.keras")
    loaded = keras.saving.load_model(tmp_path / "gpt.keras")
    np.testing.assert_array_equal(logits(loaded, tokens), logits(model, tokens))
