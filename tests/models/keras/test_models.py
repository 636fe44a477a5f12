"""Shapes and settings of the Keras models."""

import numpy as np
import pytest

from train_anywhere.training.plan import build_network

CONFIGS = [
    "model=mlp",
    "model=mlp model.hidden=[]",
    "model=cnn",
    "model=resnet18",
    "model=resnet18 model.small_images=true",
    "model=resnet50",
]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("overrides", CONFIGS)
@pytest.mark.quick("model=mlp model.hidden=[]-1", "model=mlp model.hidden=[]-3")
def test_images_become_logits(make_config, overrides: str, channels: int) -> None:
    model = build_network(
        make_config("framework=keras", *overrides.split()), {"shape": (33, 40, channels), "outputs": 7}
    )
    logits = model(np.zeros((2, 33, 40, channels), np.float32))
    assert logits.shape == (2, 7)
    assert logits.dtype == "float32"
    assert np.isfinite(logits).all()


@pytest.mark.parametrize("overrides", CONFIGS)
@pytest.mark.quick("model=mlp model.hidden=[]", "model=mlp")
def test_variables_have_unique_paths(make_config, overrides: str) -> None:
    """Checkpoints store variables by their paths."""
    paths = [
        v.path
        for v in build_network(
            make_config("framework=keras", *overrides.split()), {"shape": (32, 32, 3), "outputs": 10}
        ).variables
    ]
    assert len(set(paths)) == len(paths)


@pytest.mark.parametrize("name", ["cnn", "resnet18"])
def test_a_batch_is_a_tenth_of_the_moving_statistics(make_config, name: str) -> None:
    """The momentum is 0.9, which other frameworks call 0.1."""
    import keras

    from train_anywhere.training.keras.dropin.gradients import find_parts

    model = build_network(make_config("framework=keras", f"model={name}"), {"shape": (8, 8, 1), "outputs": 2})
    batch = np.random.default_rng(0).normal(size=(4, 8, 8, 1)).astype(np.float32)
    means = []
    for _ in range(2):
        model(batch, training=True)
        means.append(
            [np.array(norm.moving_mean) for norm in find_parts(model, keras.layers.BatchNormalization)]
        )
    for first, second in zip(*means, strict=True):
        np.testing.assert_allclose(second, 1.9 * first, rtol=1e-3, atol=1e-6)


def test_strided_convolutions_pad_all_sides_alike() -> None:
    """Padding is symmetric: a flipped image and kernel give the flipped output."""
    import keras

    from src.models.keras.resnet import conv_norm

    image = keras.Input((9, 9, 1))
    model = keras.Model(image, conv_norm(image, 1, 3, stride=2))
    kernel = model.trainable_variables[0]
    kernel.assign(np.ones(kernel.shape))
    picture = np.random.default_rng(0).normal(size=(1, 9, 9, 1)).astype(np.float32)
    one, mirrored = model(picture).numpy(), model(picture[:, ::-1, ::-1]).numpy()
    np.testing.assert_allclose(mirrored, one[:, ::-1, ::-1], atol=1e-6)
