"""One step: accumulated gradients, XLA, and the optimizers that both need."""

from typing import Any

import numpy as np
import pytest

from train_anywhere.errors import ConfigError

ROWS = 12


def make_module(model: Any, accumulate: int, shape: tuple[int, ...] = (8, 8, 1), **options: Any) -> Any:
    """Return the module of a compiled model for batches of images of a shape, and labels."""
    import keras
    import tensorflow as tf

    from train_anywhere.training.keras.dropin.gradients import AveragingApply, find_parts
    from train_anywhere.training.keras.dropin.model import build_variables
    from train_anywhere.training.keras.module import Module
    from train_anywhere.training.keras.strategies.base import Strategy

    applies = [
        AveragingApply(one, Strategy(), n)
        for n, one in enumerate(find_parts(model, keras.optimizers.Optimizer))
    ]
    spec = (tf.TensorSpec((None, *shape)), tf.TensorSpec((None,), tf.int64))
    extra, *_ = build_variables(model, "model", (), applies, spec, None)
    return Module(model, model, Strategy(), extra, applies, accumulate=accumulate, **options)


def small_model() -> Any:
    """Return a network that always has the same first weights, with a layer that adds to the loss."""
    import keras

    from src.models.keras.mlp import mlp
    from src.tasks.keras.classification import classification

    keras.utils.set_random_seed(0)
    network = mlp((8, 8, 1), 10, hidden=[32], dropout=0.0)
    network.layers[-1].kernel_regularizer = keras.regularizers.L2(0.1)
    return classification(network, keras.optimizers.SGD(1.0))


@pytest.mark.parametrize(("accumulate", "compiled"), [(1, True), (3, False), (3, True)])
def test_a_step_gives_the_weights_of_one_big_batch(accumulate: int, compiled: bool) -> None:
    import tensorflow as tf

    random = np.random.default_rng(0)
    images = random.normal(size=(ROWS, 8, 8, 1)).astype(np.float32)
    batch = images, random.integers(0, 10, ROWS)
    stacks = batch
    if accumulate > 1:
        stacks = tuple(part.reshape(accumulate, ROWS // accumulate, *part.shape[1:]) for part in batch)
    found = []
    for data, module in (
        (batch, make_module(small_model(), 1)),
        (stacks, make_module(small_model(), accumulate, jit_compile=compiled)),
    ):
        module.logs = module.model.train_function(iter(tf.data.Dataset.from_tensors(data)))
        found.append(([v.numpy() for v in module.model.weights], module.report("train", module.take())))
    for one, other in zip(found[0][0], found[1][0], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    assert found[1][1] == pytest.approx(found[0][1], rel=1e-5)


def test_a_step_of_two_optimizers_can_not_be_compiled() -> None:
    from engine.tests.training.keras.strangers import COLUMNS, Gan

    model = Gan()
    model.compile()
    with pytest.raises(ConfigError, match="calls 2 optimizers"):
        make_module(model, 1, (COLUMNS,), jit_compile=True)


def test_a_float16_network_answers_in_float32(make_config) -> None:
    from train_anywhere.training.keras.dropin.model import dtype_policy
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
