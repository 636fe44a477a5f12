"""Shapes, and what the models have in common with those of the other framework besides their sizes."""

from types import SimpleNamespace

import numpy as np
import pytest

from src.errors import ConfigError

CONFIGS = [
    "model=mlp",
    "model=cnn",
    "model=resnet18",
    "model=resnet18 model.small_images=true",
    "model=resnet50",
]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("overrides", CONFIGS)
def test_images_become_logits(make_config, overrides: str, channels: int) -> None:
    from src.models.keras import build_model

    model = build_model(make_config(*overrides.split()).model, (33, 40, channels), 7)
    logits = model(np.zeros((2, 33, 40, channels), np.float32))
    assert logits.shape == (2, 7)
    assert logits.dtype == "float32"
    assert np.isfinite(logits).all()


@pytest.mark.parametrize("overrides", CONFIGS)
def test_variables_have_unique_paths(make_config, overrides: str) -> None:
    """Checkpoints name them so."""
    from src.models.keras import build_model

    paths = [v.path for v in build_model(make_config(*overrides.split()).model, (32, 32, 3), 10).variables]
    assert len(set(paths)) == len(paths)


def test_strided_convolutions_pad_all_sides_alike() -> None:
    """As torch does: the output for a mirrored image and kernel is the mirrored output."""
    import keras

    from src.models.keras.resnet import conv_norm

    image = keras.Input((9, 9, 1))
    model = keras.Model(image, conv_norm(image, 1, 3, stride=2))
    kernel = model.trainable_variables[0]
    kernel.assign(np.ones(kernel.shape))
    picture = np.random.default_rng(0).normal(size=(1, 9, 9, 1)).astype(np.float32)
    one, mirrored = model(picture).numpy(), model(picture[:, ::-1, ::-1]).numpy()
    np.testing.assert_allclose(mirrored, one[:, ::-1, ::-1], atol=1e-6)


def test_a_model_of_the_other_framework_is_refused() -> None:
    from src.models.keras import build_model

    only_there = SimpleNamespace(name="rnn")
    with pytest.raises(
        ConfigError, match="model=rnn has no network for framework=keras; use framework=lightning"
    ):
        build_model(only_there, (8, 8, 1), 10)  # type: ignore[arg-type]
